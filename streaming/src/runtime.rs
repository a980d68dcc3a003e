//! What a container runtime does for the streaming server.

use std::future::Future;

use tokio::{
    io::{AsyncBufRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

/// A byte stream from the client. Its end is the client's half-close, or its leaving, which
/// may also come as an error; `gone` tells.
pub type Reader = Box<dyn AsyncBufRead + Send + Unpin>;

/// A byte stream to the client. `shutdown` ends it; an error says that the client is gone.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Why a runtime could not do what it was asked; the text goes to the client.
pub type RuntimeError = Box<dyn std::error::Error + Send + Sync>;

/// A container runtime, as the streaming server sees it.
///
/// A method runs until its command or connection has ended and everything it wrote was
/// taken over. When [`Streams::gone`] is cancelled, nobody is left to talk to: the
/// method ends what it began, as soon as it can, and returns.
pub trait Runtime: Send + Sync + 'static {
    /// Runs a command in a running container to its end.
    ///
    /// # Errors
    /// The command could not be followed.
    fn exec(
        &self,
        exec: Exec,
        streams: Streams,
    ) -> impl Future<Output = Result<Exit, RuntimeError>> + Send;

    /// Joins the streams of a running container's own process, until it or the client ends.
    ///
    /// # Errors
    /// The container could not be joined.
    fn attach(
        &self,
        attach: Attach,
        streams: Streams,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Carries bytes between the client and a port of a sandbox's loopback, until both
    /// directions have ended.
    ///
    /// # Errors
    /// Nobody listens at the port, or the sandbox does not run.
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
    /// The container.
    pub container_id: String,
    /// The program and its arguments; not run by a shell.
    pub command: Vec<String>,
    /// Which streams the client takes.
    pub wants: Wants,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this exit code: 128 plus the signal's number when a signal ended it.
    Code(i32),
    /// It was not started.
    NotStarted {
        /// 126 or 127, as shells have it.
        code: i32,
        /// Why.
        reason: String,
    },
}

/// A container to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The container.
    pub container_id: String,
    /// Which streams the client takes.
    pub wants: Wants,
}

/// Which streams a client takes. At least one of the first three; never both `stderr`
/// and `tty`, since a terminal has one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Error output.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// The client's end of a command. A stream that it did not ask for is `None`.
pub struct Streams {
    /// Input for the command.
    pub stdin: Option<Reader>,
    /// Output of the command.
    pub stdout: Option<Writer>,
    /// Error output of the command.
    pub stderr: Option<Writer>,
    /// Sizes of the client's terminal, the first as soon as it is known; `None` without
    /// a terminal or when the protocol cannot tell.
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
    /// Cancelled when the client is gone or was cut off.
    pub gone: CancellationToken,
}

/// The client's end of a forwarded connection.
pub struct Connection {
    /// What the client sends.
    pub reader: Reader,
    /// What the client receives.
    pub writer: Writer,
    /// Cancelled when the client is gone or was cut off.
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
