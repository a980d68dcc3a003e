use super::*;

fn at(runtime_endpoint: &str) -> CriOptions {
    CriOptions {
        runtime_endpoint: runtime_endpoint.to_owned(),
        ..CriOptions::default()
    }
}

#[tokio::test]
async fn an_endpoint_that_is_no_socket_is_refused_by_name() {
    for (endpoint, reason) in [
        ("tcp://127.0.0.1:1", "scheme \"tcp\""),
        ("run/containerd.sock", "not absolute"),
        ("", "not absolute"),
    ] {
        let error = CriClient::connect(&at(endpoint))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{endpoint}: {error}");
    }
}

#[tokio::test]
async fn an_absent_runtime_is_an_error_of_the_call() {
    let client = CriClient::connect(&at("unix:///nonexistent.sock"))
        .await
        .unwrap();
    let error = client.version().await.unwrap_err();
    assert!(error.to_string().starts_with("Version: "), "{error}");
    assert!(!error.is_answer());
    let status = tonic::Status::unavailable("the registry is away");
    assert!(deadline::failed("PullImage", "a:1", status).is_answer());
}
