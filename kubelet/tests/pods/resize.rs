//! In-place resizes of running pods.

use std::time::Duration;

use fake_runtime::{Fault, Times, Usage, Verb};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

pub(crate) fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "2", "memory": memory}})
}

pub(crate) fn sized(resources: &Value, policy: &str) -> Pod {
    pod(
        "web",
        "u1",
        json!({"containers": [{
            "name": "c", "image": IMAGE, "resources": resources,
            "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": policy}
            ]
        }]}),
    )
}

pub(crate) fn condition(kubelet: &Running, type_: &str) -> Option<PodCondition> {
    let conditions = kubelet.status("web").conditions.unwrap_or_default();
    conditions.into_iter().find(|c| c.type_ == type_)
}

fn shown(kubelet: &Running) -> Value {
    serde_json::to_value(kubelet.container("web").resources).unwrap()
}

/// CPU shares and memory limit of the container in the runtime.
pub(crate) fn actual(node: &Node) -> (i64, i64) {
    let config = node.runtime.running("c")[0].config.clone();
    let resources = config.linux.unwrap().resources.unwrap();
    (resources.cpu_shares, resources.memory_limit_in_bytes)
}

#[tokio::test(start_paused = true)]
async fn a_running_container_is_resized_without_a_restart() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet
        .add(sized(&resources("100m", "64Mi"), "NotRequired"))
        .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    assert_eq!(actual(&node), (102, 64 << 20));

    let more = resources("200m", "128Mi");
    kubelet.update(sized(&more, "NotRequired")).await;
    until("its status", 5 * SECOND, || shown(&kubelet) == more).await;
    assert_eq!(actual(&node), (204, 128 << 20));
    let allocated = serde_json::to_value(kubelet.container("web").allocated_resources);
    assert_eq!(allocated.unwrap(), more["requests"]);
    assert_eq!(condition(&kubelet, "PodResizeInProgress"), None);
    assert_eq!(kubelet.container("web").restart_count, 0);
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
    // One update for memory, one for CPU.
    assert_eq!(node.runtime.calls(Verb::UpdateContainerResources), 2);
    assert_eq!(node.runtime.calls(Verb::UpdatePodSandboxResources), 1);
}

/// Waits, as clients do, until a generation is observed and its resize is not in progress.
async fn until_resized(kubelet: &Running, generation: i64) {
    let is_resized = || {
        kubelet.status("web").observed_generation == Some(generation)
            && condition(kubelet, "PodResizeInProgress").is_none()
    };
    while !is_resized() {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_generation_is_observed_once_its_resize_is_decided() {
    let node = Node::new();
    let kubelet = node.start();
    let at = |generation, resources: &Value| {
        let mut pod = sized(resources, "NotRequired");
        pod.metadata.generation = Some(generation);
        pod
    };
    kubelet.add(at(1, &resources("100m", "64Mi"))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;

    let more = resources("200m", "128Mi");
    kubelet.update(at(2, &more)).await;
    until_resized(&kubelet, 2).await;
    assert_eq!(shown(&kubelet), more);

    kubelet.update(at(3, &resources("200m", "1000Ti"))).await;
    until_resized(&kubelet, 3).await;
    let pending = condition(&kubelet, "PodResizePending");
    assert_eq!(pending.unwrap().observed_generation, Some(3));
    kubelet.stop().await;

    // A kubelet that starts has not decided either.
    let kubelet = node.start();
    let still_more = resources("300m", "128Mi");
    let mut wanted = at(4, &still_more);
    wanted.status = Some(PodStatus {
        observed_generation: Some(3),
        phase: Some("Running".to_owned()),
        ..PodStatus::default()
    });
    kubelet.add(wanted).await;
    until_resized(&kubelet, 4).await;
    assert_eq!(shown(&kubelet), still_more);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_asks_for_it_is_restarted() {
    let node = Node::new();
    let kubelet = node.start();
    let pod = |memory| sized(&resources("100m", memory), "RestartContainer");
    kubelet.add(pod("64Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.update(pod("128Mi")).await;
    until("a second run", 5 * SECOND, || {
        kubelet.container("web").restart_count == 1 && kubelet.phase("web") == "Running"
    })
    .await;
    assert_eq!(actual(&node), (102, 128 << 20));
    assert_eq!(node.runtime.calls(Verb::UpdateContainerResources), 0);
    assert_eq!(shown(&kubelet), resources("100m", "128Mi"));
    // A change of CPU alone needs no restart.
    kubelet
        .update(sized(&resources("200m", "128Mi"), "RestartContainer"))
        .await;
    until("the CPU", 5 * SECOND, || actual(&node) == (204, 128 << 20)).await;
    assert_eq!(kubelet.container("web").restart_count, 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_outlives_the_kubelet() {
    let node = Node::new();
    let kubelet = node.start();
    let more = sized(&resources("200m", "128Mi"), "RestartContainer");
    kubelet
        .add(sized(&resources("100m", "128Mi"), "RestartContainer"))
        .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.update(more.clone()).await;
    until("the CPU", 5 * SECOND, || actual(&node) == (204, 128 << 20)).await;
    sleep(SECOND).await;
    kubelet.stop().await;

    let kubelet = node.start();
    kubelet.add(more).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    sleep(70 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
    assert_eq!(node.runtime.calls(Verb::UpdateContainerResources), 1);
    kubelet.stop().await;

    // A change while the kubelet was down is a resize too.
    let kubelet = node.start();
    kubelet
        .add(sized(&resources("300m", "128Mi"), "RestartContainer"))
        .await;
    until("the CPU", 5 * SECOND, || actual(&node) == (307, 128 << 20)).await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_finds_no_room_goes_on_as_it_was() {
    let node = Node::new();
    let kubelet = node.start();
    let small = resources("100m", "64Mi");
    kubelet.add(sized(&small, "NotRequired")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet
        .update(sized(&resources("100m", "1000Ti"), "NotRequired"))
        .await;
    until("why not", 5 * SECOND, || {
        condition(&kubelet, "PodResizePending").is_some()
    })
    .await;
    let pending = condition(&kubelet, "PodResizePending").unwrap();
    assert_eq!(pending.reason.as_deref(), Some("Infeasible"));
    let message = pending.message.unwrap();
    assert!(
        message.starts_with("Node didn't have enough capacity: memory"),
        "{message}"
    );
    let check = |kubelet: &Running| {
        assert_eq!(actual(&node), (102, 64 << 20));
        assert_eq!(shown(kubelet), small);
        assert_eq!(node.runtime.calls(Verb::UpdateContainerResources), 0);
    };
    check(&kubelet);
    kubelet.stop().await;

    // The infeasible resize is remembered, even when a container is created.
    let kubelet = node.start();
    kubelet
        .add(sized(&resources("100m", "1000Ti"), "NotRequired"))
        .await;
    until("why not", 5 * SECOND, || {
        condition(&kubelet, "PodResizePending").is_some()
    })
    .await;
    node.runtime.exit_container("c", 1);
    until("a second run", 15 * SECOND, || {
        kubelet.container("web").restart_count == 1 && kubelet.container("web").ready
    })
    .await;
    check(&kubelet);
    kubelet.update(sized(&small, "NotRequired")).await;
    until("nothing to wait for", 5 * SECOND, || {
        condition(&kubelet, "PodResizePending").is_none()
    })
    .await;
    check(&kubelet);
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_is_not_taken_away() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet
        .add(sized(&resources("100m", "128Mi"), "NotRequired"))
        .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let id = node.runtime.running("c")[0].id.clone();
    let uses = |mebibytes: u64| Usage {
        memory_bytes: mebibytes << 20,
        ..Usage::default()
    };
    node.runtime.set_usage(&id, uses(100));
    kubelet
        .update(sized(&resources("100m", "64Mi"), "NotRequired"))
        .await;
    let error = || condition(&kubelet, "PodResizeInProgress").and_then(|c| c.reason);
    until("the reason", 15 * SECOND, || {
        error().as_deref() == Some("Error")
    })
    .await;
    let message = condition(&kubelet, "PodResizeInProgress")
        .unwrap()
        .message
        .unwrap();
    assert!(
        message.starts_with("cannot decrease memory limits"),
        "{message}"
    );
    assert_eq!(actual(&node), (102, 128 << 20));
    node.runtime.set_usage(&id, uses(10));
    until("the limit", 15 * SECOND, || {
        actual(&node) == (102, 64 << 20)
    })
    .await;
    until("its end", 15 * SECOND, || error().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_the_runtime_refuses_is_tried_again() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet
        .add(sized(&resources("100m", "64Mi"), "NotRequired"))
        .await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let fault = Fault::Error(tonic::Status::internal("not now"));
    node.runtime
        .fault(Verb::UpdateContainerResources, fault, Times::N(2));
    let more = resources("200m", "64Mi");
    kubelet.update(sized(&more, "NotRequired")).await;
    until("its status", Duration::from_secs(30), || {
        shown(&kubelet) == more
    })
    .await;
    until("its end", 5 * SECOND, || {
        condition(&kubelet, "PodResizeInProgress").is_none()
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn what_one_container_gives_up_is_taken_before_another_gets_it() {
    let node = Node::new();
    let kubelet = node.start();
    let sized = |first: Value, second: Value| {
        let containers = [("first", first), ("second", second)].map(|(name, resources)| {
            json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "resources": resources})
        });
        pod("web", "u1", json!({"containers": containers}))
    };
    let (little, much) = (resources("100m", "64Mi"), resources("300m", "128Mi"));
    kubelet.add(sized(little.clone(), much.clone())).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let of = |name: &str| {
        let config = node.runtime.running(name)[0].config.clone();
        let resources = config.linux.unwrap().resources.unwrap();
        (resources.cpu_shares, resources.memory_limit_in_bytes >> 20)
    };
    assert_eq!([of("first"), of("second")], [(102, 64), (307, 128)]);

    // Slow enough to observe each step.
    let slowly = Fault::Delay(SECOND);
    node.runtime
        .fault(Verb::UpdateContainerResources, slowly, Times::Always);
    kubelet.update(sized(much, little)).await;
    let mut steps = vec![[of("first"), of("second")]];
    until("the last step", 15 * SECOND, || {
        let now = [of("first"), of("second")];
        if steps.last() != Some(&now) {
            steps.push(now);
        }
        now == [(307, 128), (102, 64)]
    })
    .await;
    let expected = [
        [(102, 64), (307, 128)],
        [(102, 64), (307, 64)],
        [(102, 128), (307, 64)],
        [(102, 128), (102, 64)],
        [(307, 128), (102, 64)],
    ];
    assert_eq!(steps, expected);
}

#[tokio::test(start_paused = true)]
async fn an_init_container_is_resized_while_it_runs() {
    let node = Node::new();
    let kubelet = node.start();
    let pod = |cpu| {
        // A regular init container is never restarted for a resize, regardless of its policy.
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        pod(
            "web",
            "u1",
            json!({
                "initContainers": [{
                    "name": "i", "image": IMAGE, "resizePolicy": policy,
                    "resources": resources(cpu, "64Mi")
                }],
                "containers": [{"name": "c", "image": IMAGE}]
            }),
        )
    };
    kubelet.add(pod("100m")).await;
    until("its run", 5 * SECOND, || {
        !node.runtime.running("i").is_empty()
    })
    .await;
    kubelet.update(pod("200m")).await;
    let shares = || {
        let config = node.runtime.running("i")[0].config.clone();
        config.linux.unwrap().resources.unwrap().cpu_shares
    };
    until("the CPU", 5 * SECOND, || shares() == 204).await;
    let shown = || {
        let statuses = kubelet.status("web").init_container_statuses.unwrap();
        serde_json::to_value(&statuses[0].resources).unwrap()
    };
    until("its status", 5 * SECOND, || {
        shown() == resources("200m", "64Mi")
    })
    .await;
    until("its end", 5 * SECOND, || {
        condition(&kubelet, "PodResizeInProgress").is_none()
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}
