//! The session of a connection: negotiated with the client's request, run after the upgrade.

use std::{sync::Arc, time::Duration};

use hyper::{http::request::Parts, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};
use tokio_util::sync::CancellationToken;

use crate::{
    Attach, Exec, RequestedStreams, Runtime,
    handshake::{self, HandshakeResponse},
    port_forward,
    remote_command::{SPDY_PROTOCOLS, Session, Subprotocol, Version},
    status::Status,
    websocket,
};

/// The negotiated protocol and its request.
pub(crate) enum NegotiatedSession {
    CommandSpdy(Version, CommandRequest),
    CommandWebSocket(Subprotocol, CommandRequest),
    ForwardSpdy(String),
    ForwardWebSocket(port_forward::Subprotocol, String, Vec<u16>),
}

/// A command; its kind decides on the status at its end.
pub(crate) enum CommandRequest {
    Exec(Exec),
    Attach(Attach),
}

/// The timeouts of a session.
#[derive(Clone, Copy)]
pub(crate) struct SessionTimeouts {
    /// The time without data after which the session ends.
    pub(crate) idle: Duration,
    /// The deadline for the creation of the client's streams.
    pub(crate) creation: Duration,
}

// === impl NegotiatedSession ===

impl NegotiatedSession {
    /// Negotiates the protocol of a command. Also returns the answer.
    pub(crate) fn command(
        request: &Parts,
        websocket: bool,
        command: CommandRequest,
    ) -> Result<(HandshakeResponse, Self), Box<HandshakeResponse>> {
        if websocket {
            let (protocol, answer) = handshake::websocket(request, Subprotocol::parse)?;
            return Ok((answer, Self::CommandWebSocket(protocol, command)));
        }
        let (protocol, answer) = handshake::spdy(request, &SPDY_PROTOCOLS)?;
        let version = Version::of_spdy(protocol);
        Ok((answer, Self::CommandSpdy(version, command)))
    }

    /// Negotiates the protocol of a port-forward. Also returns the answer.
    pub(crate) fn port_forward(
        request: &Parts,
        websocket: bool,
        sandbox_id: String,
        ports: Vec<u16>,
    ) -> Result<(HandshakeResponse, Self), Box<HandshakeResponse>> {
        if websocket {
            let (protocol, answer) =
                handshake::websocket(request, port_forward::Subprotocol::parse)?;
            return Ok((answer, Self::ForwardWebSocket(protocol, sandbox_id, ports)));
        }
        let (_, answer) = handshake::spdy(request, &[port_forward::PROTOCOL])?;
        Ok((answer, Self::ForwardSpdy(sandbox_id)))
    }

    /// Runs the session on the upgraded connection, until it ends or `gone` is cancelled.
    pub(crate) async fn run<R: Runtime>(
        self,
        io: TokioIo<Upgraded>,
        runtime: Arc<R>,
        timeouts: SessionTimeouts,
        gone: CancellationToken,
    ) {
        let SessionTimeouts { idle, creation } = timeouts;
        match self {
            Self::CommandSpdy(version, run) => {
                let requested = run.requested();
                match Session::over_spdy(io, version, requested, idle, creation, gone).await {
                    Ok(session) => run.run(&*runtime, session).await,
                    Err(error) => tracing::debug!(%error, "dropped a client"),
                }
            }
            Self::CommandWebSocket(protocol, run) => {
                let socket = open_websocket(io).await;
                let requested = run.requested();
                let session = Session::over_websocket(socket, protocol, requested, idle, gone);
                run.run(&*runtime, session).await;
            }
            Self::ForwardSpdy(sandbox_id) => {
                port_forward::over_spdy(io, runtime, sandbox_id, idle, creation, gone).await;
            }
            Self::ForwardWebSocket(port_forward::Subprotocol::Tunnel, sandbox_id, _) => {
                let io = websocket::Tunnel::new(open_websocket(io).await);
                port_forward::over_spdy(io, runtime, sandbox_id, idle, creation, gone).await;
            }
            Self::ForwardWebSocket(
                port_forward::Subprotocol::Channels { base64 },
                sandbox_id,
                ports,
            ) => {
                let socket = open_websocket(io).await;
                port_forward::over_websocket(
                    socket, base64, runtime, sandbox_id, ports, idle, gone,
                )
                .await;
            }
        }
    }
}

async fn open_websocket<T>(io: T) -> WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    WebSocketStream::from_raw_socket(io, Role::Server, Some(websocket::config())).await
}

// === impl CommandRequest ===

impl CommandRequest {
    fn requested(&self) -> RequestedStreams {
        match self {
            Self::Exec(exec) => exec.requested,
            Self::Attach(attach) => attach.requested,
        }
    }

    async fn run<R: Runtime>(self, runtime: &R, mut session: Session) {
        let Some(streams) = session.take_streams() else {
            return;
        };
        let status = match self {
            Self::Exec(exec) => match runtime.exec(exec, streams).await {
                Ok(exit) => Status::exited(exit),
                Err(error) => Status::failed("executing command in", &error),
            },
            Self::Attach(attach) => match runtime.attach(attach, streams).await {
                Ok(()) => Status::success(),
                Err(error) => Status::failed("attaching to", &error),
            },
        };
        session.finish(&status).await;
    }
}
