//! The fake runtime conforms to CRI, so tests that use it are meaningful.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use cri_proto::runtime::v1::{
    self as cri, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use fake_runtime::{Behaviour, FakeRuntime, Fault, Times, Verb};
use tokio::time::Instant;
use tonic::{Code, Status, transport::Channel};

struct Clients {
    fake: FakeRuntime,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl Clients {
    fn new() -> Self {
        let fake = FakeRuntime::new();
        let channel = fake.channel();
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
            fake,
        }
    }

    async fn sandbox(&mut self, name: &str) -> Result<String, Status> {
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            ..Default::default()
        };
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        let response = self.runtime.run_pod_sandbox(request).await?;
        Ok(response.into_inner().pod_sandbox_id)
    }

    async fn container(&mut self, sandbox: &str, name: &str) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata {
                    name: name.to_owned(),
                    attempt: 0,
                }),
                image: Some(cri::ImageSpec {
                    image: "busybox:1".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            sandbox_config: None,
        };
        let response = self.runtime.create_container(request).await?;
        Ok(response.into_inner().container_id)
    }

    async fn start(&mut self, id: &str) -> Result<(), Status> {
        let container_id = id.to_owned();
        self.runtime
            .start_container(cri::StartContainerRequest { container_id })
            .await?;
        Ok(())
    }

    async fn status(&mut self, id: &str) -> Result<cri::ContainerStatus, Status> {
        let response = self
            .runtime
            .container_status(cri::ContainerStatusRequest {
                container_id: id.to_owned(),
                verbose: false,
            })
            .await?;
        Ok(response.into_inner().status.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends_as_cri_has_it() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    let sandbox = c.sandbox("web").await.unwrap();
    let id = c.container(&sandbox[..12], "server").await.unwrap();
    assert_eq!(
        c.status(&id).await.unwrap().state(),
        cri::ContainerState::ContainerCreated
    );
    c.start(&id).await.unwrap();
    assert_eq!(
        c.start(&id).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(c.fake.exit_container("server", 3), 1);
    let status = c.status(&id[..12]).await.unwrap();
    assert_eq!(status.state(), cri::ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    assert!(status.finished_at >= status.started_at && status.started_at > 0);
}

#[tokio::test(start_paused = true)]
async fn removing_is_idempotent_and_takes_the_containers_along() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    let sandbox = c.sandbox("web").await.unwrap();
    let id = c.container(&sandbox, "server").await.unwrap();
    c.start(&id).await.unwrap();
    for _ in 0..2 {
        let pod_sandbox_id = sandbox.clone();
        c.runtime
            .remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })
            .await
            .unwrap();
    }
    assert!(c.fake.sandboxes().is_empty() && c.fake.containers().is_empty());
    assert_eq!(c.status(&id).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn names_are_taken_once_and_images_must_be_there() {
    let mut c = Clients::new();
    let sandbox = c.sandbox("web").await.unwrap();
    assert_eq!(
        c.sandbox("web").await.unwrap_err().code(),
        Code::AlreadyExists
    );
    assert_eq!(
        c.container(&sandbox, "a").await.unwrap_err().code(),
        Code::NotFound
    );
    let pull = |image: &str| cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: image.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        c.images
            .pull_image(pull("busybox:1"))
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    c.fake.add_pullable_image("busybox:1");
    c.images.pull_image(pull("busybox:1")).await.unwrap();
    c.container(&sandbox, "a").await.unwrap();
    assert_eq!(
        c.container(&sandbox, "a").await.unwrap_err().code(),
        Code::AlreadyExists
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_container_and_kills_it_at_the_timeout() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    let behaviour = |seconds| Behaviour {
        stops_after: Some(Duration::from_secs(seconds)),
        ..Default::default()
    };
    c.fake.behave("quick", behaviour(2));
    c.fake.behave("slow", behaviour(60));
    let sandbox = c.sandbox("web").await.unwrap();
    for (name, seconds, code) in [("quick", 2, 143), ("slow", 30, 137)] {
        let id = c.container(&sandbox, name).await.unwrap();
        c.start(&id).await.unwrap();
        let before = Instant::now();
        c.runtime
            .stop_container(cri::StopContainerRequest {
                container_id: id.clone(),
                timeout: 30,
            })
            .await
            .unwrap();
        assert_eq!(before.elapsed().as_secs(), seconds, "{name}");
        assert_eq!(c.status(&id).await.unwrap().exit_code, code, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn faults_are_met_in_order_and_go_away() {
    let mut c = Clients::new();
    let verb = Verb::RunPodSandbox;
    c.fake
        .fault(verb, Fault::Error(Status::internal("no")), Times::N(2));
    c.fake
        .fault(verb, Fault::Delay(Duration::from_secs(5)), Times::Once);
    c.fake.fault(
        verb,
        Fault::ErrorAfter(Status::aborted("lost")),
        Times::Once,
    );
    for _ in 0..2 {
        assert_eq!(c.sandbox("a").await.unwrap_err().message(), "no");
    }
    let before = Instant::now();
    c.sandbox("b").await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(5));
    assert_eq!(c.sandbox("c").await.unwrap_err().message(), "lost");
    assert_eq!(c.fake.sandboxes().len(), 2, "the lost answer was served");
    c.fake.fault(verb, Fault::Hang, Times::Always);
    tokio::time::timeout(Duration::from_secs(3600), c.sandbox("d"))
        .await
        .unwrap_err();
    c.fake.clear_faults();
    c.sandbox("d").await.unwrap();
    assert_eq!(c.fake.calls(verb), 6);
}

#[tokio::test(start_paused = true)]
async fn events_tell_every_step_in_order() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    let mut events = c
        .runtime
        .get_container_events(cri::GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    let sandbox = c.sandbox("web").await.unwrap();
    let id = c.container(&sandbox, "server").await.unwrap();
    c.start(&id).await.unwrap();
    c.fake.exit_container(&id, 0);
    use cri::ContainerEventType as E;
    let expected = [
        (&sandbox, E::ContainerCreatedEvent),
        (&sandbox, E::ContainerStartedEvent),
        (&id, E::ContainerCreatedEvent),
        (&id, E::ContainerStartedEvent),
        (&id, E::ContainerStoppedEvent),
    ];
    for (id, kind) in expected {
        let event = events.message().await.unwrap().unwrap();
        assert_eq!(
            (&event.container_id, event.container_event_type()),
            (id, kind)
        );
    }
}

#[tokio::test]
async fn it_serves_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let fake = FakeRuntime::new();
    let _serving = fake.serve(&socket).unwrap();
    let mut client = RuntimeServiceClient::connect(format!("unix://{}", socket.display()))
        .await
        .unwrap();
    let version = client
        .version(cri::VersionRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(version.runtime_api_version, "v1");
}

#[tokio::test(start_paused = true)]
async fn an_image_in_use_stays_until_its_containers_are_gone() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    let sandbox = c.sandbox("web").await.unwrap();
    c.container(&sandbox, "server").await.unwrap();
    let remove = || cri::RemoveImageRequest {
        image: Some(cri::ImageSpec {
            image: "docker.io/library/busybox:1".to_owned(),
            ..Default::default()
        }),
    };
    let refused = c.images.remove_image(remove()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: sandbox,
    };
    c.runtime.remove_pod_sandbox(request).await.unwrap();
    for _ in 0..2 {
        c.images.remove_image(remove()).await.unwrap();
    }
    assert!(c.fake.images().is_empty());
}

#[tokio::test(start_paused = true)]
async fn lists_may_lag_behind_statuses() {
    let mut c = Clients::new();
    c.fake.add_image("busybox:1");
    c.fake.lag_lists(Duration::from_secs(2));
    let sandbox = c.sandbox("web").await.unwrap();
    let id = c.container(&sandbox, "server").await.unwrap();
    let mut lister = c.runtime.clone();
    let mut listed = async || {
        let request = cri::ListContainersRequest::default();
        let answer = lister.list_containers(request).await.unwrap();
        let containers = answer.into_inner().containers.into_iter();
        containers.map(|c| c.state()).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, []);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(listed().await, [cri::ContainerState::ContainerCreated]);
    c.start(&id).await.unwrap();
    assert_eq!(
        c.status(&id).await.unwrap().state(),
        cri::ContainerState::ContainerRunning
    );
    assert_eq!(listed().await, [cri::ContainerState::ContainerCreated]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(listed().await, [cri::ContainerState::ContainerRunning]);
}
