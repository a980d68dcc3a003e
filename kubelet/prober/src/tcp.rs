//! TCP probes.

use std::time::Duration;

use tokio::net::TcpStream;

use super::outcome::Outcome;

/// Whether a port of a host accepts a connection.
pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(error)) => Outcome::Failure(format!("dial tcp {host}:{port}: {error}")),
        Err(_) => Outcome::Failure(format!("dial tcp {host}:{port}: i/o timeout")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn who_listens_is_well() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(probe("127.0.0.1", port, SECOND).await, Outcome::Success);
        drop(listener);
        let outcome = probe("127.0.0.1", port, SECOND).await;
        let Outcome::Failure(message) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            message.starts_with(&format!("dial tcp 127.0.0.1:{port}: ")),
            "{message}"
        );
    }
}
