//! The interface between the streaming server and a container runtime.

use std::future::Future;

use tokio::{
    io::{AsyncBufRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

/// A byte stream from the client. It ends, possibly with an error, when the client half-closes it
/// or disconnects; `gone` tells these apart.
pub type Reader = Box<dyn AsyncBufRead + Send + Unpin>;

/// A byte stream to the client. `shutdown` ends it; an error means that the client is gone.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The reason why an operation of the runtime failed. The text is sent to the client.
pub type RuntimeError = Box<dyn std::error::Error + Send + Sync>;

/// A container runtime, as the streaming server uses it.
///
/// A method returns once its command or connection has ended and all of its output is written. When
/// [`Streams::gone`] is cancelled, the client is gone: the method must stop what it started as soon
/// as possible, and return.
pub trait Runtime: Send + Sync + 'static {
    /// Runs a command in a running container and waits for its end.
    ///
    /// # Errors
    /// Running the command failed, or its result is unknown.
    fn exec(
        &self,
        exec: Exec,
        streams: Streams,
    ) -> impl Future<Output = Result<Exit, RuntimeError>> + Send;

    /// Attaches to the main process of a running container, until the process or the client ends.
    ///
    /// # Errors
    /// Attaching to the container failed.
    fn attach(
        &self,
        attach: Attach,
        streams: Streams,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Forwards bytes between the client and a port on the sandbox's loopback interface, until both
    /// directions have ended.
    ///
    /// # Errors
    /// No process listens on the port, or the sandbox is not running.
    fn port_forward(
        &self,
        sandbox_id: &str,
        port: u16,
        connection: Connection,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;
}

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The container's ID.
    pub container_id: String,
    /// The program and its arguments. No shell is involved.
    pub command: Vec<String>,
    /// The streams that the client requests.
    pub requested: RequestedStreams,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this code; 128 plus the signal number if a signal killed it.
    Code(i32),
    /// The command failed to start.
    NotStarted {
        /// 126 or 127, as in shells.
        code: i32,
        /// The reason.
        reason: String,
    },
}

/// A container to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The container's ID.
    pub container_id: String,
    /// The streams that the client requests.
    pub requested: RequestedStreams,
}

/// The streams that a client requests: at least one of the first three, and never both `stderr` and
/// `tty`, since a terminal has only one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// The client's streams of a command. A stream that was not requested is `None`.
pub struct Streams {
    /// The command's standard input.
    pub stdin: Option<Reader>,
    /// The command's standard output.
    pub stdout: Option<Writer>,
    /// The command's standard error.
    pub stderr: Option<Writer>,
    /// The sizes of the client's terminal, starting with the initial one; `None` without a terminal
    /// or if the protocol version does not support resizing.
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
    /// Cancelled when the client has disconnected or was disconnected.
    pub gone: CancellationToken,
}

/// The client's side of a forwarded connection.
pub struct Connection {
    /// The data from the client.
    pub reader: Reader,
    /// The data to the client.
    pub writer: Writer,
    /// Cancelled when the client has disconnected or was disconnected.
    pub gone: CancellationToken,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}
