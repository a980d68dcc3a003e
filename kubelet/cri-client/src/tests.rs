use cri_proto::runtime::v1::ImageSpec;
use fake_runtime::{FakeRuntime, Fault, Times, Verb};
use kubelet_metrics::{Collector as _, Exposition};

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

#[tokio::test(start_paused = true)]
async fn an_image_is_removed_by_id_and_may_be_gone_already() {
    let runtime = FakeRuntime::new();
    let channel = runtime.channel();
    let client = CriClient::from_channels(channel.clone(), channel, Duration::from_secs(5));
    let id = runtime.add_image("busybox:1");
    runtime.add_image("busybox:2");
    let image = ImageSpec {
        image: id,
        ..ImageSpec::default()
    };
    let away = Fault::Error(tonic::Status::unavailable("away"));
    runtime.fault(Verb::RemoveImage, away, Times::Once);
    client.remove_image(image.clone()).await.unwrap_err();
    client.remove_image(image.clone()).await.unwrap();
    let left = client.list_images().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].repo_tags, ["docker.io/library/busybox:2"]);
    let gone = Fault::Error(tonic::Status::not_found("no such image"));
    runtime.fault(Verb::RemoveImage, gone, Times::Once);
    client.remove_image(image).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_does_not_tell_its_cgroup_driver_is_outdated() {
    let runtime = FakeRuntime::new();
    let channel = runtime.channel();
    let client = CriClient::from_channels(channel.clone(), channel, Duration::from_secs(5));
    let line = "kubelet_cri_losing_support{version=\"1.37.0\"} 1\n";
    let page = || {
        let mut page = Exposition::default();
        client.metrics().collect(&mut page);
        page.into_text()
    };
    assert!(client.cgroup_driver().await.unwrap().is_some());
    assert!(!page().contains("losing_support"));
    let unknown = Fault::Error(tonic::Status::unimplemented("RuntimeConfig"));
    runtime.fault(Verb::RuntimeConfig, unknown, Times::Once);
    assert_eq!(client.cgroup_driver().await.unwrap(), None);
    assert!(page().contains(line), "{}", page());
}
