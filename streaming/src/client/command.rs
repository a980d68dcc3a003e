//! The client side of exec and attach.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{Client, ClientError, Transport};
use crate::{
    IDLE_TIMEOUT, Reader, RequestedStreams, Status, TerminalSize, Writer,
    remote_command::{STREAM_TYPE, channel},
    spdy::{Connection, Headers, Stream},
    websocket::{Channels, Codec},
};

const SPDY_PROTOCOL: &str = "v4.channel.k8s.io";
const WEBSOCKET_PROTOCOL: &str = "v5.channel.k8s.io";
/// The maximum size of a status in bytes. A usual one has about 200 bytes plus the error text.
const LONGEST_STATUS: u64 = 64 * 1024;

/// The streams of a command, as requested. Shutting `stdin` down ends the input; the outputs end
/// with the command.
pub struct Command {
    /// The command's standard input.
    pub stdin: Option<Writer>,
    /// The command's standard output.
    pub stdout: Option<Reader>,
    /// The command's standard error.
    pub stderr: Option<Reader>,
    /// Sends the size of the terminal.
    pub resizer: Option<Resizer>,
    /// Receives the result of the command.
    pub status: StatusReader,
}

/// Sends the size of a command's terminal.
pub struct Resizer(Writer);

/// Receives the result of a command. Dropping it closes the connection.
pub struct StatusReader {
    stream: Reader,
    link: Link,
}

/// The connection, and the streams that must not end before it.
enum Link {
    Spdy {
        _connection: Connection,
        _held: Vec<Writer>,
    },
    WebSocket {
        _channels: Channels,
        gone: CancellationToken,
    },
}

impl Client {
    /// Connects to a command by the URL that a server's `exec` or `attach` returned. `requested`
    /// must be the same as on the server.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn command(
        &self,
        url: &str,
        transport: Transport,
        requested: RequestedStreams,
    ) -> Result<Command, ClientError> {
        match transport {
            Transport::Spdy => self.command_spdy(url, requested).await,
            Transport::WebSocket => self.command_websocket(url, requested).await,
        }
    }

    async fn command_spdy(
        &self,
        url: &str,
        requested: RequestedStreams,
    ) -> Result<Command, ClientError> {
        let (io, chosen) = self.spdy(url, &[SPDY_PROTOCOL]).await?;
        if chosen != SPDY_PROTOCOL {
            return Err(ClientError::Protocol(format!("{chosen:?}")));
        }
        let gone = CancellationToken::new();
        let (connection, incoming) = Connection::client(io, IDLE_TIMEOUT, gone);
        drop(incoming);
        let open = async |kind: &str, wanted: bool| {
            if !wanted {
                return Ok(None);
            }
            let headers = Headers::default().with(STREAM_TYPE, kind);
            let stream = connection.open(headers).await?;
            Ok::<_, ClientError>(Some(stream))
        };
        let (error, held) = output(open("error", true).await?);
        let stdin = input(open("stdin", requested.stdin).await?);
        let (stdout, out_held) = output(open("stdout", requested.stdout).await?);
        let (stderr, err_held) = output(open("stderr", requested.stderr).await?);
        let resizer = input(open("resize", requested.tty).await?).map(Resizer);
        let held = [held, out_held, err_held].into_iter().flatten().collect();
        Ok(Command {
            stdin,
            stdout,
            stderr,
            resizer,
            status: StatusReader {
                stream: error.unwrap_or_else(|| Box::new(tokio::io::empty())),
                link: Link::Spdy {
                    _connection: connection,
                    _held: held,
                },
            },
        })
    }

    async fn command_websocket(
        &self,
        url: &str,
        requested: RequestedStreams,
    ) -> Result<Command, ClientError> {
        let (socket, chosen) = self.websocket(url, &[WEBSOCKET_PROTOCOL]).await?;
        if chosen != WEBSOCKET_PROTOCOL {
            return Err(ClientError::Protocol(format!("{chosen:?}")));
        }
        let codec = Codec {
            base64: false,
            close_signal: true,
        };
        let gone = CancellationToken::new();
        let inputs = [false, requested.stdout, requested.stderr, true, false];
        let mut channels = Channels::open(socket, codec, &inputs, IDLE_TIMEOUT, gone.clone());
        let writer = |wanted: bool, number| wanted.then(|| channels.client_writer(number));
        let stdin = writer(requested.stdin, channel::STDIN);
        let resizer = writer(requested.tty, channel::RESIZE).map(Resizer);
        let stream = channels.reader(channel::ERROR);
        Ok(Command {
            stdin,
            stdout: channels.reader(channel::STDOUT),
            stderr: channels.reader(channel::STDERR),
            resizer,
            status: StatusReader {
                stream: stream.unwrap_or_else(|| Box::new(tokio::io::empty())),
                link: Link::WebSocket {
                    _channels: channels,
                    gone,
                },
            },
        })
    }
}

fn input(stream: Option<Stream>) -> Option<Writer> {
    stream.map(|stream| Box::new(stream.split().1) as Writer)
}

/// Returns the reader of an output, and its unused write half, which the caller must keep: a server
/// may take the end of the stream for a disconnect of the client.
fn output(stream: Option<Stream>) -> (Option<Reader>, Option<Writer>) {
    match stream.map(Stream::split) {
        Some((reader, writer)) => (Some(Box::new(reader)), Some(Box::new(writer))),
        None => (None, None),
    }
}

// === impl Resizer ===

impl Resizer {
    /// Sends the current size of the terminal.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        let TerminalSize { width, height } = size;
        let event = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
        self.0.write_all(event.as_bytes()).await?;
        self.0.flush().await
    }
}

// === impl StatusReader ===

impl StatusReader {
    /// Waits for the end of the command. The outputs must be read concurrently.
    ///
    /// # Errors
    /// The connection ended before the command, or the server sent an invalid status.
    pub async fn wait(mut self) -> io::Result<Status> {
        let mut text = Vec::new();
        let mut limited = (&mut self.stream).take(LONGEST_STATUS);
        let read = limited.read_to_end(&mut text).await;
        if text.is_empty() {
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_slice(&text).map_err(|_| {
            let text = String::from_utf8_lossy(&text).into_owned();
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}

impl Drop for StatusReader {
    fn drop(&mut self) {
        if let Link::WebSocket { gone, .. } = &self.link {
            gone.cancel();
        }
    }
}
