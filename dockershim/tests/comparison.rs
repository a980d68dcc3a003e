//! The model is compared with the engine's list while connected, because events can get lost. Slow
//! or broken images do not delay the comparison.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use cri_proto::runtime::v1::{
    ContainerState, ImageSpec, ImageStatusRequest, ListImagesRequest,
    PodSandboxState::{SandboxNotready, SandboxReady},
    image_service_server::ImageService as _,
};
use support::{FakeEngine, Hang, eventually, node::Node};
use tokio::time::timeout;
use tonic::{Code, Request};

/// One round of the comparison, with a margin for slow machines.
const A_ROUND: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, for at most one round of the comparison.
async fn within_a_round(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let in_time = timeout(A_ROUND, waiting).await;
    assert!(in_time.is_ok(), "timeout after {A_ROUND:?}: {what}");
}

#[tokio::test]
async fn a_model_that_missed_events_is_right_after_a_round() {
    let engine = FakeEngine::start();
    let ended = engine.add_sandbox("ended", true, false);
    let removed = engine.add_sandbox("removed", true, false);
    let log = engine.socket.with_extension("log");
    let container = engine.add_container(&ended, "main", &log);
    let node = Node::synced(&engine).await;
    assert_eq!(node.states().len(), 2);

    engine.end_unseen(&ended);
    engine.end_unseen(&container);
    engine.remove(&removed, false);
    let added = engine.add_sandbox("added", true, false);
    // Created for a request that its client has abandoned.
    engine.add_sandbox("late", false, false);
    let expected = [(ended, SandboxNotready), (added, SandboxReady)];
    within_a_round("what was missed is known", || node.states() == expected).await;
    within_a_round("the container's end is known", || {
        let known = node.shim.model.snapshot().container(&container).unwrap();
        known.status.state() == ContainerState::ContainerExited
    })
    .await;
    within_a_round("the abandoned container is removed", || {
        !engine.names().iter().any(|name| name.contains("late"))
    })
    .await;
    let differences = node.shim.model.differences.counts();
    let of = |kind: &str| differences.iter().find(|(k, _)| *k == kind).unwrap().1;
    assert_eq!((of("state"), of("gone")), (2, 1));
    assert_eq!(of("unknown"), 2);
}

#[tokio::test]
async fn an_image_list_that_hangs_holds_up_no_container() {
    let engine = FakeEngine::start();
    engine.hang(Hang::Images, true);
    let node = Node::synced(&engine).await;
    assert_eq!(node.ready().await, (true, String::new()));
    let sandbox = timeout(Duration::from_secs(30), node.run("web"));
    let sandbox = sandbox.await.unwrap().unwrap();
    let app = engine.add_image("e2e.local/app:1", false);
    let container = timeout(
        Duration::from_secs(30),
        node.create(&sandbox, "main", "e2e.local/app:1"),
    );
    let container = container.await.unwrap().unwrap();
    let known = node.shim.model.snapshot().container(&container).unwrap();
    assert_eq!(known.status.image_id, app);
    // A missing list must not be reported as an empty one.
    let listed = node
        .service
        .list_images(Request::new(ListImagesRequest::default()));
    assert_eq!(listed.await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn an_image_that_cannot_be_inspected_costs_itself_alone() {
    let engine = FakeEngine::start();
    engine.add_image("e2e.local/broken:1", true);
    engine.add_image("e2e.local/app:1", false);
    let node = Node::synced(&engine).await;
    let sandbox = node.run("web").await.unwrap();
    node.create(&sandbox, "main", "e2e.local/app:1")
        .await
        .unwrap();
    let refused = node.create(&sandbox, "broken", "e2e.local/broken:1").await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("layer does not exist"), "{refused}");
    let listed = || async {
        let request = Request::new(ListImagesRequest::default());
        let images = node.service.list_images(request).await?.into_inner().images;
        Ok::<_, tonic::Status>(images.len())
    };
    for _ in 0..2500 {
        if listed().await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(listed().await.unwrap(), 3);
    // The kubelet checks `runAsNonRoot` with this response, so it must not lack the user.
    let request = ImageStatusRequest {
        image: Some(ImageSpec {
            image: "e2e.local/broken:1".into(),
            ..Default::default()
        }),
        verbose: false,
    };
    let status = node.service.image_status(Request::new(request)).await;
    assert!(
        status
            .unwrap_err()
            .message()
            .contains("layer does not exist")
    );
}

#[tokio::test]
async fn after_a_reconnect_the_shim_is_not_ready_and_mutations_wait_until_the_comparison() {
    let mut engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    engine.stop();
    for _ in 0..2500 {
        if !node.ready().await.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!node.ready().await.0);
    engine.hang(Hang::Containers, true);
    let listed = engine.calls("GET json");
    engine.restart();
    eventually("the engine is asked what it runs", || {
        engine.calls("GET json") > listed
    })
    .await;
    let not_ready = (false, "ContainersNotRead".to_owned());
    assert_eq!(node.ready().await, not_ready);
    let before = engine.calls("POST create");
    let run = node.run("web");
    tokio::pin!(run);
    assert!(timeout(Duration::from_secs(1), &mut run).await.is_err());
    assert_eq!(engine.calls("POST create"), before);
    engine.hang(Hang::Containers, false);
    run.await.unwrap();
    assert_eq!(node.ready().await, (true, String::new()));
}
