//! Connections to the fake runtime, and how a test breaks them.

use std::{io, path::Path};

use cri_proto::runtime::v1::{
    image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer,
};
use hyper_util::rt::TokioIo;
use tokio::{io::DuplexStream, net::UnixListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server, server::Router};

use super::FakeRuntime;

/// The buffer size of an in-process connection, in bytes per direction.
const PIPE: usize = 64 * 1024;
/// The maximum size of a message in either direction, equal to the kubelet's own limit.
const MESSAGE: usize = 16 * 1024 * 1024;

impl FakeRuntime {
    /// A client channel over in-process pipes. It connects on first use.
    pub fn channel(&self) -> Channel {
        let (dial, accepted) = mpsc::unbounded_channel::<io::Result<DuplexStream>>();
        let server = self
            .router()
            .serve_with_incoming(UnboundedReceiverStream::new(accepted));
        tokio::spawn(server);
        let broken = self.0.broken.clone();
        Endpoint::from_static("http://fake-runtime").connect_with_connector_lazy(tower::service_fn(
            move |_| {
                let (near, relayed) = tokio::io::duplex(PIPE);
                let (relaying, far) = tokio::io::duplex(PIPE);
                tokio::spawn(relay(relayed, relaying, broken.subscribe()));
                let sent = dial.send(Ok(far));
                async move {
                    sent.map(|()| TokioIo::new(near))
                        .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))
                }
            },
        ))
    }

    /// Breaks every in-process connection, as a restart of the runtime does: the calls in progress
    /// fail, and the changes that they have made remain. The next call connects again.
    pub fn break_connections(&self) {
        self.0.broken.send_modify(|times| *times += 1);
    }

    /// Serves on a unix socket until the returned value is dropped.
    pub fn serve(&self, socket: &Path) -> io::Result<Serving> {
        let listener = UnixListener::bind(socket)?;
        let server = self
            .router()
            .serve_with_incoming(UnixListenerStream::new(listener));
        Ok(Serving(tokio::spawn(async move {
            if let Err(error) = server.await {
                panic!("the fake runtime's server ended: {error}");
            }
        })))
    }

    fn router(&self) -> Router {
        Server::builder()
            .add_service(self.runtime_service())
            .add_service(self.image_service())
    }

    /// The runtime service, for calls without a transport and without a task of its own.
    pub fn runtime_service(&self) -> RuntimeServiceServer<Self> {
        RuntimeServiceServer::new(self.clone())
            .max_decoding_message_size(MESSAGE)
            .max_encoding_message_size(MESSAGE)
    }

    /// The image service, like [`Self::runtime_service`].
    pub fn image_service(&self) -> ImageServiceServer<Self> {
        ImageServiceServer::new(self.clone())
            .max_decoding_message_size(MESSAGE)
            .max_encoding_message_size(MESSAGE)
    }
}

/// Relays a connection until either end closes it or all connections are broken.
async fn relay(
    mut near: DuplexStream,
    mut far: DuplexStream,
    mut broken: tokio::sync::watch::Receiver<u32>,
) {
    tokio::select! {
        // The two ends see any error themselves.
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = broken.changed() => {}
    }
}

/// A server of the fake runtime. It stops when this is dropped.
#[derive(Debug)]
pub struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}
