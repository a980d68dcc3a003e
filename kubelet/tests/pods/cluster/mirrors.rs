//! Mirror pods of static pods.

use std::{collections::BTreeMap, time::Duration};

use fake_runtime::{Behaviour, Verb};
use serde_json::json;

use super::{Joined, MINUTE, manifest, once};
use crate::node::{SECOND, until};

const NAME: &str = "static-node";

/// A container that succeeds after a second.
fn short() -> Behaviour {
    Behaviour {
        exits_after: Some((SECOND, 0)),
        ..Behaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_has_a_mirror_with_its_status() {
    let joined = Joined::new();
    let member = joined.start().await;
    let pod = manifest("one");
    member.set_static(vec![pod.clone()]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    until("it to be ready", 5 * SECOND, || {
        joined.api.condition(NAME, "Ready") == "True"
    })
    .await;

    let mirror = joined.api.pod(NAME).unwrap();
    assert_ne!(mirror.metadata.uid, pod.metadata.uid);
    let annotations: BTreeMap<String, String> = mirror.metadata.annotations.unwrap();
    let annotation = |key: &str| annotations[&format!("kubernetes.io/config.{key}")].clone();
    assert_eq!(annotation("source"), "file");
    assert_eq!(annotation("mirror"), annotation("hash"));
    assert_eq!(Some(annotation("hash")), pod.metadata.uid);
    assert!(!annotation("seen").is_empty());
    assert_eq!(mirror.metadata.labels.unwrap()["tier"], "node");
    let owner = &mirror.metadata.owner_references.unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()),
        ("Node", "node", "node-uid")
    );
    assert_eq!(owner.controller, Some(true));
    let spec = mirror.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("node"));
    assert_eq!(
        joined.node.runtime.calls(Verb::RunPodSandbox),
        1,
        "the mirror is not run"
    );
    assert_eq!(joined.api.count("POST"), 1, "{:?}", joined.api.requests());

    tokio::time::sleep(2 * MINUTE).await;
    let requests = joined.api.requests();
    assert!(joined.api.count("PATCH") <= 4, "{requests:?}");
    assert_eq!(
        (joined.api.count("POST"), joined.api.count("DELETE")),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_is_deleted_comes_back_and_the_pod_runs_on() {
    let joined = Joined::new();
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    for grace in [0, 30] {
        let before = joined.api.pod(NAME).unwrap().metadata.uid;
        joined.api.delete(NAME, grace);
        until("another mirror", 5 * SECOND, || {
            let mirror = joined.api.pod(NAME);
            mirror.is_some_and(|mirror| mirror.metadata.uid != before)
        })
        .await;
        joined.until_phase(NAME, "Running", 5 * SECOND).await;
    }
    assert_eq!(joined.node.runtime.calls(Verb::StartContainer), 1);
    assert_eq!(joined.node.runtime.calls(Verb::StopContainer), 0);
}

#[tokio::test(start_paused = true)]
async fn an_edited_static_pod_gets_another_mirror() {
    let joined = Joined::new();
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    let edited = manifest("two");
    let hash = edited.metadata.uid.clone().unwrap();
    member.set_static(vec![edited]).await;
    until("the mirror of the edited one", 60 * SECOND, || {
        let mirror = joined.api.pod(NAME).unwrap_or_default();
        let annotations = mirror.metadata.annotations.unwrap_or_default();
        annotations.get("kubernetes.io/config.mirror") == Some(&hash)
    })
    .await;
    until("its status", 5 * SECOND, || {
        joined.api.condition(NAME, "Ready") == "True"
    })
    .await;
    assert_eq!(joined.node.runtime.running("c").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_goes_with_its_static_pod_and_not_before() {
    let joined = Joined::new();
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    joined.api.set_away(true);
    member.set_static(Vec::new()).await;
    until("its end", 40 * SECOND, || {
        joined.node.runtime.sandboxes().is_empty()
    })
    .await;
    joined.api.set_away(false);
    until("the mirror to go", 60 * SECOND, || {
        joined.api.pod(NAME).is_none()
    })
    .await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.api.count("DELETE"), 1);
    assert_eq!(joined.api.count("POST"), 1);
}

#[tokio::test(start_paused = true)]
async fn static_pods_run_without_the_api_server_and_are_mirrored_once_it_is_there() {
    let joined = Joined::new();
    joined.api.set_away(true);
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    until("it to run", 5 * SECOND, || {
        joined.node.runtime.running("c").len() == 1
    })
    .await;
    tokio::time::sleep(MINUTE).await;
    joined.api.set_away(false);
    joined.until_phase(NAME, "Running", 60 * SECOND).await;
    assert_eq!(joined.node.runtime.calls(Verb::StartContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_waits_for_the_node() {
    let joined = Joined::new();
    joined.objects.remove("node", "", "node");
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    until("it to run", 5 * SECOND, || {
        joined.node.runtime.running("c").len() == 1
    })
    .await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.api.count("POST"), 0);
    let node = json!({"metadata": {"name": "node", "uid": "node-uid"}});
    joined.objects.put("node", node);
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_of_an_earlier_kubelet_is_kept() {
    let joined = Joined::new();
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    tokio::time::sleep(15 * SECOND).await;
    let before = joined.api.pod(NAME).unwrap();
    member.stop().await;

    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    tokio::time::sleep(2 * MINUTE).await;
    let after = joined.api.pod(NAME).unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(
        after.status.unwrap().start_time,
        before.status.unwrap().start_time
    );
    assert_eq!(joined.api.count("DELETE"), 0);
    assert_eq!(joined.node.runtime.calls(Verb::StartContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_stays_ready_over_a_restart_of_the_kubelet() {
    let joined = Joined::new();
    let mut pod = manifest("one");
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.readiness_probe = serde_json::from_value(probe.clone()).unwrap();
    container.startup_probe = serde_json::from_value(probe).unwrap();
    let member = joined.start().await;
    member.set_static(vec![pod.clone()]).await;
    until("it to be ready", 10 * SECOND, || {
        joined.api.condition(NAME, "Ready") == "True"
    })
    .await;
    tokio::time::sleep(MINUTE).await;
    let before = joined.api.pod(NAME).unwrap().status;
    member.stop().await;

    // The mirror pod is known before the static pod, or after it.
    for mirror_first in [true, false] {
        let member = joined.start().await;
        if mirror_first {
            tokio::time::sleep(SECOND).await;
        }
        member.set_static(vec![pod.clone()]).await;
        for _ in 0..1000 {
            assert_eq!(joined.api.condition(NAME, "Ready"), "True");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(joined.api.pod(NAME).unwrap().status, before);
        member.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_that_is_done_has_its_mirror_nonetheless() {
    let joined = Joined::new();
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
    member.stop().await;

    // The pod completes before this kubelet receives the mirror of its predecessor.
    joined.node.runtime.behave("c", short());
    let mut member = joined.unregistered(joined.node.options()).await;
    let edited = once("two");
    let hash = edited.metadata.uid.clone().unwrap();
    member.set_static(vec![edited]).await;
    tokio::time::sleep(MINUTE).await;
    member.register.take().unwrap().send(()).unwrap();
    joined.until_phase(NAME, "Succeeded", 5 * SECOND).await;
    let annotations = joined.api.pod(NAME).unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations["kubernetes.io/config.mirror"], hash);
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_that_comes_back_before_it_had_a_mirror_has_one_at_once() {
    let joined = Joined::new();
    joined.objects.remove("node", "", "node");
    let member = joined.start().await;
    member.set_static(vec![manifest("one")]).await;
    until("it to run", 5 * SECOND, || {
        joined.node.runtime.running("c").len() == 1
    })
    .await;
    member.set_static(Vec::new()).await;
    until("its end", 40 * SECOND, || {
        joined.node.runtime.sandboxes().is_empty()
    })
    .await;
    let node = json!({"metadata": {"name": "node", "uid": "node-uid"}});
    joined.objects.put("node", node);
    // The kubelet finds that the pod to be mirrored is gone.
    tokio::time::sleep(2 * SECOND).await;
    member.set_static(vec![manifest("one")]).await;
    joined.until_phase(NAME, "Running", 5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_before_it_had_a_mirror_has_one_by_the_next_kubelet() {
    let joined = Joined::new();
    joined.api.set_away(true);
    let member = joined.start().await;
    joined.node.runtime.behave("c", short());
    member.set_static(vec![once("one")]).await;
    until("its end", 10 * SECOND, || {
        joined.node.runtime.calls(Verb::StopPodSandbox) == 1
    })
    .await;
    member.stop().await;
    joined.api.set_away(false);

    let member = joined.start().await;
    member.set_static(vec![once("one")]).await;
    joined.until_phase(NAME, "Succeeded", 5 * SECOND).await;
    assert_eq!(joined.node.runtime.calls(Verb::StartContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_the_server_refused_is_asked_for_again_of_what_has_ended() {
    let joined = Joined::new();
    joined.node.runtime.behave("c", short());
    joined.api.refuse_creations(true);
    let member = joined.start().await;
    member.set_static(vec![once("one")]).await;
    until("its end", 10 * SECOND, || {
        joined.node.runtime.calls(Verb::StopPodSandbox) == 1
    })
    .await;
    tokio::time::sleep(10 * MINUTE).await;
    let asked = joined.api.count("POST");
    assert!((2..=20).contains(&asked), "{:?}", joined.api.requests());
    joined.api.refuse_creations(false);
    joined.until_phase(NAME, "Succeeded", 2 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_that_runs_once_more_shows_that_run() {
    let joined = Joined::new();
    joined.node.runtime.behave("c", short());
    let member = joined.start().await;
    member.set_static(vec![once("one")]).await;
    joined.until_phase(NAME, "Succeeded", 10 * SECOND).await;

    // The pod is absent too briefly for its mirror to be deleted. The API server does not let a
    // mirror that has succeeded run again.
    joined.node.runtime.behave("c", Behaviour::default());
    member.set_static(Vec::new()).await;
    member.set_static(vec![once("one")]).await;
    until("the next run", 10 * SECOND, || {
        joined.node.runtime.calls(Verb::StartContainer) == 2
    })
    .await;
    until("it to be ready at the API server", 20 * SECOND, || {
        joined.api.condition(NAME, "Ready") == "True"
    })
    .await;
    assert_eq!(joined.api.phase(NAME), "Running");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(joined.api.count("DELETE"), 1, "{:?}", joined.api.requests());
    assert_eq!(joined.api.count("POST"), 2, "{:?}", joined.api.requests());
}
