//! The CRI socket.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener as StdListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::{
    runtime::v1::{
        image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer,
    },
    server::Incoming,
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tower::util::option_layer;

use crate::{
    Shim, Streaming,
    config::Listen,
    service::{Deadline, MetricsLayer, Service},
    systemd,
};

/// The kubelet's limit for its side of the connection.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// The socket's mode: access for root and its group.
const MODE: u32 = 0o660;
/// How long shutdown waits for requests in progress. The engine completes operations it has
/// received by itself.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);
/// How long shutdown then waits for the logs.
const LOGS_PATIENCE: Duration = Duration::from_secs(5);

/// Why the CRI socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process is serving on the socket.
    #[error("{} is already served by another process", .0.display())]
    InUse(PathBuf),
    /// The path exists but is not a socket; it is left in place.
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// A system call failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// systemd did not pass a usable socket.
    #[error("--container-runtime-endpoint: fd://: {0}")]
    Activation(#[from] systemd::ActivationError),
    /// The gRPC server failed.
    #[error("serve CRI: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Listens on the configured socket.
///
/// # Errors
/// See [`ServerError`].
pub fn listen(listen: &Listen) -> Result<UnixListener, ServerError> {
    match listen {
        Listen::Unix(path) => listen_at(path),
        Listen::Activated => Ok(systemd::socket()?),
    }
}

/// Listens on a unix socket at `path`, and replaces a stale socket there.
fn listen_at(path: &Path) -> Result<UnixListener, ServerError> {
    let failed = |action| {
        move |source| ServerError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed("create the directory of"))?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServerError::NoSocket(path.to_owned()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(ServerError::InUse(path.to_owned()));
        }
        Ok(_) => fs::remove_file(path).map_err(failed("remove the stale socket"))?,
        Err(_) => {}
    }
    let listener = StdListener::bind(path).map_err(failed("listen on"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(failed("set mode of"))?;
    listener
        .set_nonblocking(true)
        .and_then(|()| UnixListener::from_std(listener))
        .map_err(failed("listen on"))
}

/// Serves CRI and streaming until `stop`; then accepts no new requests and waits for those in
/// progress. Pods keep running.
///
/// # Errors
/// [`ServerError::Serve`].
pub async fn serve(
    shim: Arc<Shim>,
    streaming: Arc<Streaming>,
    listener: UnixListener,
    stop: CancellationToken,
) -> Result<(), ServerError> {
    let service = Service::new(Arc::clone(&shim), Arc::clone(&streaming));
    let streams = tokio::spawn(streaming.serve(stop.clone()));
    let runtime = RuntimeServiceServer::new(service.clone())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(usize::MAX);
    let images = ImageServiceServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(usize::MAX);
    let measure = shim
        .metrics
        .as_ref()
        .map(|m| MetricsLayer::new(m.requests.clone()));
    let server = Server::builder()
        .layer(option_layer(measure))
        .layer(tower::layer::layer_fn(Deadline::new))
        .add_service(runtime)
        .add_service(images)
        .serve_with_incoming_shutdown(Incoming::from(listener), stop.clone().cancelled_owned());
    systemd::ready();
    tracing::info!(socket = %shim.config.listen, "serving CRI v1");
    let patience = async {
        stop.cancelled().await;
        systemd::stopping();
        tokio::time::sleep(SHUTDOWN_PATIENCE).await;
    };
    tokio::select! {
        // Polled first, so that the service manager is notified of the shutdown before it ends.
        biased;
        () = patience => tracing::warn!("shutdown timed out; dropping unfinished requests"),
        served = async {
            served(server, &shim).await?;
            let _ = streams.await;
            Ok::<_, ServerError>(())
        } => served?,
    }
    // The next shim rereads the log entries whose position could not be saved in time.
    let _ = tokio::time::timeout(LOGS_PATIENCE, shim.logs.close()).await;
    tracing::info!("stopped; pods keep running");
    Ok(())
}

async fn served(
    server: impl Future<Output = Result<(), tonic::transport::Error>>,
    shim: &Shim,
) -> Result<(), ServerError> {
    server.await?;
    shim.tasks.close();
    shim.tasks.wait().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/cri.sock");
        let first = listen_at(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            MODE
        );
        assert!(matches!(listen_at(&path), Err(ServerError::InUse(_))));
        drop(first);
        listen_at(&path).unwrap();
    }

    #[tokio::test]
    async fn a_file_is_not_taken_for_a_socket() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            listen_at(file.path()),
            Err(ServerError::NoSocket(_))
        ));
        assert!(file.path().exists());
    }
}
