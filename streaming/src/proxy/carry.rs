//! Copies the bytes of an upgraded connection.

use std::{future::Future, io, pin::pin, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The buffer size of a connection, per direction.
const BUFFER: usize = 16 * 1024;
/// The time without data after which a client's connection is closed once the backend has ended.
const LINGER: Duration = Duration::from_secs(60);

/// The end whose failure broke a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum CarryError {
    #[error("lost the client: {0}")]
    Client(io::Error),
    #[error("lost the backend: {0}")]
    Backend(io::Error),
}

/// The side of a [`flow`] that failed.
#[derive(Debug)]
enum FlowError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies bytes in both directions until both have ended. Data that the backend sent before it
/// disconnected is still delivered to the client, since it includes the exit code.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite,
    backend: impl AsyncRead + AsyncWrite,
) -> Result<(), CarryError> {
    let (client_reader, client_writer) = tokio::io::split(client);
    let (backend_reader, backend_writer) = tokio::io::split(backend);
    let backend_over = CancellationToken::new();
    let mut up = pin!(flow(client_reader, backend_writer, &backend_over));
    let mut down = pin!(flow(backend_reader, client_writer, &backend_over));
    let (mut up_over, mut down_over) = (false, false);
    while !(up_over && down_over) {
        tokio::select! {
            ended = &mut up, if !up_over => {
                up_over = true;
                match ended {
                    Ok(()) => {}
                    Err(FlowError::Read(error)) => return Err(CarryError::Client(error)),
                    Err(FlowError::Write(_)) => backend_over.cancel(),
                }
            }
            ended = &mut down, if !down_over => {
                down_over = true;
                match ended {
                    Ok(()) => backend_over.cancel(),
                    Err(FlowError::Read(error)) => return Err(CarryError::Backend(error)),
                    Err(FlowError::Write(error)) => return Err(CarryError::Client(error)),
                }
            }
        }
    }
    Ok(())
}

/// Copies bytes in one direction until the end of the input, and then shuts the output down.
async fn flow(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    backend_over: &CancellationToken,
) -> Result<(), FlowError> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = patient(from.read(&mut buffer), backend_over)
            .await
            .map_err(FlowError::Read)?;
        let write = async {
            if read == 0 {
                return to.shutdown().await;
            }
            to.write_all(&buffer[..read]).await?;
            to.flush().await
        };
        patient(write, backend_over)
            .await
            .map_err(FlowError::Write)?;
        if read == 0 {
            return Ok(());
        }
    }
}

/// Waits for `step`: without a limit while the backend is connected, and for at most [`LINGER`]
/// afterwards.
async fn patient<T>(
    step: impl Future<Output = io::Result<T>>,
    backend_over: &CancellationToken,
) -> io::Result<T> {
    let mut step = pin!(step);
    tokio::select! {
        biased;
        done = &mut step => return done,
        () = backend_over.cancelled() => {}
    }
    timeout(LINGER, step).await.unwrap_or_else(|_| {
        let reason = format!("no data for {LINGER:?} after the backend finished");
        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use tokio::{
        io::{DuplexStream, duplex},
        task::JoinHandle,
        time::Instant,
    };

    use super::*;

    /// Starts to forward a connection; returns its client, its backend and the task.
    fn carried() -> (
        DuplexStream,
        DuplexStream,
        JoinHandle<Result<(), CarryError>>,
    ) {
        let (client, near_client) = duplex(1024);
        let (backend, near_backend) = duplex(1024);
        (
            client,
            backend,
            tokio::spawn(carry(near_client, near_backend)),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_client_cannot_hold_a_connection_that_the_backend_ended() {
        let (mut client, mut backend, task) = carried();
        backend.write_all(b"bye").await.unwrap();
        backend.shutdown().await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "bye");

        let start = Instant::now();
        let lost = task.await.unwrap().unwrap_err();
        assert!(matches!(lost, CarryError::Client(_)), "{lost}");
        assert_eq!(start.elapsed().as_secs(), LINGER.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_still_sends_is_carried_beyond_the_limit() {
        let (mut client, mut backend, task) = carried();
        backend.shutdown().await.unwrap();
        for _ in 0..5 {
            tokio::time::advance(LINGER / 2).await;
            client.write_all(b"more").await.unwrap();
            let mut got = [0; 4];
            backend.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"more");
        }
        client.shutdown().await.unwrap();
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_carried_without_limit() {
        let (mut client, mut backend, task) = carried();
        client.shutdown().await.unwrap();
        tokio::time::sleep(LINGER * 1000).await;
        backend.write_all(b"at last").await.unwrap();
        backend.shutdown().await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "at last");
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_backend_said_before_it_went_reaches_a_client_that_still_sends() {
        // A backend that cannot be written to any more, but has data left to read.
        let (mut client, near_client) = duplex(1024);
        let tail = tokio::io::join(&b"exit code 3"[..], Gone);
        let task = tokio::spawn(carry(near_client, tail));
        client.write_all(b"unheard").await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "exit code 3");
        task.await.unwrap().unwrap();
    }

    /// A writer that fails every write.
    struct Gone;

    impl AsyncWrite for Gone {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }
}
