//! TCP probes.

use std::time::Duration;

use kubelet_http::connect_error;
use tokio::net::TcpStream;

use super::outcome::Outcome;

/// Whether a port of a host accepts a connection.
pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> Outcome {
    let why = match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => return Outcome::Success,
        Ok(Err(error)) => connect_error(&error),
        Err(_) => "i/o timeout".to_owned(),
    };
    let address = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    Outcome::Failure(format!("dial tcp {address}: {why}"))
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
        let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(message, refused);
        let outcome = probe("::1", port, SECOND).await;
        let Outcome::Failure(message) = outcome else {
            panic!("{outcome:?}");
        };
        let start = format!("dial tcp [::1]:{port}: connect: ");
        assert!(message.starts_with(&start), "{message}");
    }
}
