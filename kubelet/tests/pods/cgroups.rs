//! The cgroups of pods, from the kubelet's start to the end of a pod.

use std::{sync::Arc, time::Duration};

use fake_cgroups::FakeCgroups;
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    kubelet::options::KubeletOptions,
    pod_cgroups::options::{CgroupOptions, CgroupSource},
};
use kubelet_api_client::events::EventRecorder;
use kubelet_container_manager::{ContainerManagerOptions, Enforcement, Limits, cgroup::Driver};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::node::{IMAGE, Node, SECOND, pod, until};

const POD: &str = "/kubepods/burstable/podu1";

fn options(node: &Node, cgroups: &Arc<FakeCgroups>) -> KubeletOptions {
    KubeletOptions {
        cgroups: Some(CgroupOptions {
            driver: Driver::Cgroupfs,
            manager: ContainerManagerOptions {
                enforce: vec![Enforcement::Pods],
                ..ContainerManagerOptions::default()
            },
            kube_reserved: Limits::default(),
            system_reserved: Limits::default(),
            source: CgroupSource::Given(Arc::<FakeCgroups>::clone(cgroups)),
        }),
        ..node.options()
    }
}

fn burstable(resources: &Value) -> Pod {
    pod(
        "web",
        "u1",
        json!({"containers": [{"name": "c", "image": IMAGE, "resources": resources}]}),
    )
}

fn half_a_cpu() -> Pod {
    burstable(&json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "64Mi"}}))
}

/// The cgroup that the runtime creates the container's cgroup in.
fn parent(node: &Node) -> String {
    let sandboxes = node.runtime.sandboxes();
    let linux = sandboxes.last().unwrap().config.linux.clone();
    linux.unwrap().cgroup_parent
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_its_cgroup_from_before_its_sandbox_to_its_end() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    assert_eq!(parent(&node), POD);
    let config = cgroups.config(POD).unwrap();
    assert_eq!(config.cpu_shares, Some(512));
    assert_eq!(
        (config.cpu_quota, config.memory),
        (Some(100_000), Some(64 << 20))
    );
    let class = || cgroups.config("/kubepods/burstable").unwrap().cpu_shares;
    until("the weight of the class", 5 * SECOND, || {
        class() == Some(512)
    })
    .await;
    kubelet.remove(half_a_cpu()).await;
    until("its end", 40 * SECOND, || cgroups.config(POD).is_none()).await;
    until("the weight of the class", 5 * SECOND, || class() == Some(2)).await;
    assert_eq!(
        cgroups.paths(),
        ["/kubepods", "/kubepods/besteffort", "/kubepods/burstable"]
    );
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_room_for_its_cgroup_a_pod_waits_and_says_so() {
    let (mut node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let (recorder, mut events) = EventRecorder::new("node");
    node.events = recorder;
    let kubelet = node.start_with(options(&node, &cgroups));
    sleep(SECOND).await;
    cgroups.set_full(true);
    kubelet.add(half_a_cpu()).await;
    let message = loop {
        let event = events.recv().await.unwrap();
        if event.reason.as_deref() == Some("FailedToCreatePodContainer") {
            break event.message.unwrap();
        }
    };
    let expected =
        format!("unable to ensure pod container exists: cannot create {POD}: no storage space");
    assert_eq!(message, expected);
    assert!(node.runtime.sandboxes().is_empty());
    cgroups.set_full(false);
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_finds_the_cgroups_of_its_pods() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    let before = node.runtime.running("c")[0].id.clone();
    // A pod that was deleted meanwhile.
    cgroups.add("/kubepods/besteffort/podgone");
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    until("the leftover's end", 10 * SECOND, || {
        cgroups.config("/kubepods/besteffort/podgone").is_none()
    })
    .await;
    assert!(cgroups.config(POD).is_some());
    assert_eq!(node.runtime.running("c")[0].id, before);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_started_without_cgroups_run_on() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start();
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    assert_eq!(parent(&node), "");
    kubelet.stop().await;
    let before = node.runtime.running("c")[0].id.clone();
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(node.runtime.running("c")[0].id, before);
    assert_eq!(cgroups.config(POD), None);
    // Its next sandbox is created in a cgroup.
    let sandbox = node.ready_sandboxes().remove(0);
    node.runtime.exit_sandbox(&sandbox);
    until("a new sandbox", 30 * SECOND, || {
        cgroups.config(POD).is_some() && node.ready_sandboxes() != [sandbox.clone()]
    })
    .await;
    kubelet.until_phase("web", "Running", 30 * SECOND).await;
    assert_eq!(parent(&node), POD);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_cgroup_was_removed_starts_again_in_a_new_one() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let before = node.runtime.running("c")[0].id.clone();
    cgroups.take(POD);
    until("a new container", 120 * SECOND, || {
        let running = node.runtime.running("c");
        running.len() == 1 && running[0].id != before
    })
    .await;
    assert!(cgroups.config(POD).is_some());
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_that_lacks_a_controller_is_completed_while_its_pod_runs_on() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    kubelet.add(half_a_cpu()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let before = node.runtime.running("c")[0].id.clone();
    cgroups.disable_controller(POD);
    until("the controller", 120 * SECOND, || {
        !cgroups.is_incomplete(POD)
    })
    .await;
    assert_eq!(node.runtime.running("c")[0].id, before);
    assert_eq!(cgroups.config(POD).unwrap().cpu_shares, Some(512));
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_changes_the_limits_of_the_pod() {
    for policy in ["NotRequired", "RestartContainer"] {
        resize_changes_the_limits_of_the_pod(policy).await;
    }
}

async fn resize_changes_the_limits_of_the_pod(policy: &str) {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    let policies: Value = ["cpu", "memory"]
        .map(|resource| json!({"resourceName": resource, "restartPolicy": policy}))
        .into();
    let sized = |cpu: &str, memory: &str| {
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": "2", "memory": memory}});
        let mut pod = burstable(&resources);
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resize_policy = serde_json::from_value(policies.clone()).unwrap();
        pod
    };
    kubelet.add(sized("500m", "64Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let limits = || {
        let config = cgroups.config(POD).unwrap();
        (config.cpu_shares, config.memory)
    };
    for (cpu, memory, expected) in [
        ("1", "128Mi", (Some(1024), Some(128 << 20))),
        ("250m", "32Mi", (Some(256), Some(32 << 20))),
    ] {
        kubelet.update(sized(cpu, memory)).await;
        until("the pod's limits", 10 * SECOND, || limits() == expected).await;
        let limit = || {
            let containers = node.runtime.running("c");
            let linux = containers.first()?.config.linux.clone()?.resources?;
            Some(linux.memory_limit_in_bytes)
        };
        until("the container's", 10 * SECOND, || limit() == expected.1).await;
    }
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_of_a_container_that_waits_changes_the_limits_of_the_pod() {
    let (node, cgroups) = (Node::new(), FakeCgroups::new(Driver::Cgroupfs));
    let kubelet = node.start_with(options(&node, &cgroups));
    let sized = |cpu: &str, memory: &str| {
        burstable(&json!({"requests": {"cpu": cpu}, "limits": {"cpu": "2", "memory": memory}}))
    };
    kubelet.add(sized("500m", "64Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    // It is out of memory each time.
    for runs in 1.. {
        assert_eq!(node.runtime.exit_container("c", 137), 1);
        if runs > 2 {
            break;
        }
        until("the next run", 60 * SECOND, || {
            node.runtime.running("c").len() == 1
        })
        .await;
    }
    until("the back-off", 10 * SECOND, || {
        kubelet.waiting("web") == "CrashLoopBackOff"
    })
    .await;
    kubelet.update(sized("1", "128Mi")).await;
    until("its next run", 400 * SECOND, || {
        node.runtime.running("c").len() == 1
    })
    .await;
    let config = cgroups.config(POD).unwrap();
    let limits = (config.cpu_shares, config.memory);
    assert_eq!(limits, (Some(1024), Some(128 << 20)));
    kubelet.stop().await;
}
