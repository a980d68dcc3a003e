use cri_proto::runtime::v1::{ImageSpec, PodSandboxMetadata};
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

/// A runtime with an image, a sandbox and a container, and a client that reads lists as streams.
async fn streaming() -> (FakeRuntime, CriClient) {
    let runtime = FakeRuntime::new();
    let channel = runtime.channel();
    let timeout = Duration::from_secs(5);
    let client = CriClient::from_channels(channel.clone(), channel, timeout).with_list_streams();
    runtime.add_image("busybox:1");
    let metadata = |name: &str| PodSandboxMetadata {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "default".to_owned(),
        attempt: 0,
    };
    for name in ["a", "b"] {
        let config = PodSandboxConfig {
            metadata: Some(metadata(name)),
            labels: [(labels::POD_UID.to_owned(), format!("uid-{name}"))].into(),
            ..PodSandboxConfig::default()
        };
        client.run_pod_sandbox(config, "").await.unwrap();
    }
    (runtime, client)
}

#[tokio::test]
async fn lists_are_read_as_streams_on_request() {
    let (runtime, client) = streaming().await;
    assert_eq!(client.list_pod_sandboxes().await.unwrap().len(), 2);
    let of_pod = client.list_pod_sandboxes_of(&"uid-b".into()).await.unwrap();
    assert_eq!(of_pod.len(), 1);
    assert_eq!(of_pod[0].metadata.as_ref().unwrap().name, "b");
    assert_eq!(client.list_containers().await.unwrap(), []);
    assert_eq!(
        client.list_containers_of(&"uid-a".into()).await.unwrap(),
        []
    );
    assert_eq!(client.list_images().await.unwrap().len(), 1);
    assert_eq!(client.pod_stats().await.unwrap().len(), 2);
    assert_eq!(client.container_stats().await.unwrap(), []);
    for (verb, calls) in [
        (Verb::StreamPodSandboxes, 2),
        (Verb::StreamContainers, 2),
        (Verb::StreamImages, 1),
        (Verb::StreamPodSandboxStats, 1),
        (Verb::StreamContainerStats, 1),
        (Verb::ListPodSandbox, 0),
        (Verb::ListContainers, 0),
        (Verb::ListImages, 0),
        (Verb::ListPodSandboxStats, 0),
        (Verb::ListContainerStats, 0),
    ] {
        assert_eq!(runtime.calls(verb), calls, "{verb:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_without_streams_is_asked_for_whole_lists() {
    let (runtime, client) = streaming().await;
    // Other failures are failures.
    let broken = Fault::Error(tonic::Status::internal("broken"));
    runtime.fault(Verb::StreamPodSandboxes, broken, Times::Once);
    client.list_pod_sandboxes().await.unwrap_err();
    assert_eq!(runtime.calls(Verb::ListPodSandbox), 0);
    let of_an_object = Fault::Error(tonic::Status::unknown("stats are not implemented"));
    runtime.fault(Verb::StreamPodSandboxes, of_an_object, Times::Once);
    client.list_pod_sandboxes().await.unwrap_err();
    let unknown = || Fault::Error(tonic::Status::unimplemented("unknown method"));
    runtime.fault(Verb::StreamPodSandboxes, unknown(), Times::Once);
    for _ in 0..2 {
        assert_eq!(client.list_pod_sandboxes().await.unwrap().len(), 2);
    }
    client.list_containers().await.unwrap();
    assert_eq!(runtime.calls(Verb::StreamPodSandboxes), 3);
    assert_eq!(runtime.calls(Verb::StreamContainers), 0);
    assert_eq!(runtime.calls(Verb::ListPodSandbox), 2);
    // The image service may be another program.
    client.list_images().await.unwrap();
    assert_eq!(runtime.calls(Verb::StreamImages), 1);

    // Some servers tell it after they have opened the stream.
    let cause = deadline::failed("StreamImages", "", tonic::Status::unimplemented("no"));
    let late = CriError::Interrupted {
        verb: "StreamImages",
        cause: Box::new(cause),
    };
    assert!(lists::has_no_stream(&late), "{late}");

    let plain = CriClient::from_channels(runtime.channel(), runtime.channel(), client.timeout);
    plain.list_images().await.unwrap();
    assert_eq!(runtime.calls(Verb::StreamImages), 1);
}
