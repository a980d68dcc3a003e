//! The status of pods.

use fake_runtime::Behaviour;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;
use tokio::time::sleep;

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<(&'a str, Option<&'a str>)> {
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|c| c.type_ == type_)?;
    Some((&condition.status, condition.reason.as_deref()))
}

#[tokio::test(start_paused = true)]
async fn what_a_container_may_use_and_who_it_is_is_shown() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({
        "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000]},
        "containers": [{
            "name": "c", "image": IMAGE,
            "resources": {
                "requests": {"cpu": "0.1", "memory": "64Mi"},
                "limits": {"cpu": "1", "memory": "1024Mi"}
            },
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
            "lifecycle": {"stopSignal": "SIGUSR1"}
        }]
    });
    let mut pod = pod("web", "u1", spec);
    pod.metadata.generation = Some(3);
    kubelet.add(pod).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;

    let status = kubelet.status("web");
    let shown = serde_json::to_value(kubelet.container("web")).unwrap();
    let resources = json!({
        "requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}
    });
    assert_eq!(shown["resources"], resources);
    assert_eq!(shown["allocatedResources"], resources["requests"]);
    assert_eq!(
        shown["user"],
        json!({"linux": {"uid": 1000, "gid": 2000, "supplementalGroups": [2000, 3000]}})
    );
    assert_eq!(
        shown["volumeMounts"],
        json!([{
            "name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Disabled"
        }])
    );
    assert_eq!(shown["stopSignal"], "SIGUSR1");
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    assert_eq!(status.observed_generation, Some(3));
    let generations = status.conditions.iter().flatten();
    assert!(
        generations
            .into_iter()
            .all(|c| c.observed_generation == Some(3))
    );
    assert_eq!(serde_json::to_value(&status.resources).unwrap(), resources);
}

#[tokio::test(start_paused = true)]
async fn containers_are_sorted_by_name_and_wait_for_the_init_containers() {
    let node = Node::new();
    let done = Behaviour {
        exits_after: Some((2 * SECOND, 0)),
        ..Behaviour::default()
    };
    node.runtime.behave("i", done);
    let kubelet = node.start();
    let spec = json!({
        "initContainers": [{"name": "i", "image": IMAGE}],
        "containers": [{"name": "z", "image": IMAGE}, {"name": "a", "image": IMAGE}]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    sleep(SECOND).await;
    assert_eq!(kubelet.waiting("web"), "PodInitializing");
    assert_eq!(
        condition(&kubelet.status("web"), "Initialized"),
        Some(("False", Some("ContainersNotInitialized")))
    );
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let status = kubelet.status("web");
    let names = |statuses: &Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| {
        let statuses = statuses.iter().flatten();
        statuses.map(|s| s.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&status.container_statuses), ["a", "z"]);
    let init = &status.init_container_statuses.as_ref().unwrap()[0];
    assert!(init.ready && init.started == Some(false));
}

#[tokio::test(start_paused = true)]
async fn conditions_keep_their_times_over_changes_of_others() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let time = |type_: &str| {
        let conditions = kubelet.status("web").conditions.unwrap();
        let mut conditions = conditions.into_iter();
        let condition = conditions.find(|c| c.type_ == type_).unwrap();
        condition.last_transition_time.unwrap().0
    };
    let (scheduled, ready) = (time("PodScheduled"), time("Ready"));
    let began = kubelet.status("web").start_time;
    sleep(20 * SECOND).await;
    node.runtime.exit_container("c", 1);
    until("a second run", 15 * SECOND, || {
        let status = kubelet.container("web");
        status.restart_count == 1 && status.ready
    })
    .await;
    assert_eq!(time("PodScheduled"), scheduled);
    assert!(time("Ready") >= ready);
    assert_eq!(kubelet.status("web").start_time, began);
    let last = kubelet.container("web").last_state.unwrap().terminated;
    assert_eq!(last.unwrap().reason.as_deref(), Some("Error"));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_container_is_told_by_the_runtimes_reason() {
    for (exit_code, reason, phase) in [
        (0, "Completed", "Succeeded"),
        (137, "OOMKilled", "Failed"),
        (1, "Error", "Failed"),
    ] {
        let node = Node::new();
        let kubelet = node.start();
        kubelet
            .add(pod("web", "u1", json!({"restartPolicy": "Never"})))
            .await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        let ips = kubelet.status("web").pod_ips;
        node.runtime.exit_container_because("c", exit_code, reason);
        kubelet.until_phase("web", phase, 5 * SECOND).await;
        // The sandbox has been stopped by then.
        tokio::time::sleep(10 * SECOND).await;
        let status = kubelet.status("web");
        assert!(ips.is_some() && status.pod_ips == ips, "{ips:?}");
        let ended = kubelet.container("web").state.unwrap().terminated.unwrap();
        assert_eq!(
            (ended.exit_code, ended.reason.as_deref()),
            (exit_code, Some(reason))
        );
        let reason = if exit_code == 0 {
            "PodCompleted"
        } else {
            "PodFailed"
        };
        assert_eq!(condition(&status, "Ready"), Some(("False", Some(reason))));
        assert_eq!(
            condition(&status, "ContainersReady"),
            Some(("False", Some(reason)))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn messages_share_what_a_pod_may_say() {
    let node = Node::new();
    let kubelet = node.start();
    let containers: Vec<_> = (0..6)
        .map(|n| json!({"name": format!("c{n}"), "image": IMAGE}))
        .collect();
    let spec = json!({"restartPolicy": "Never", "containers": containers});
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let all = node.runtime.containers();
    for container in &all {
        let mut mounts = container.config.mounts.iter();
        let mount = mounts.find(|m| m.container_path == "/dev/termination-log");
        std::fs::write(&mount.unwrap().host_path, "x".repeat(4096)).unwrap();
    }
    for container in all {
        node.runtime.exit_container(&container.id, 1);
    }
    kubelet.until_phase("web", "Failed", 5 * SECOND).await;
    for status in kubelet.status("web").container_statuses.unwrap() {
        let message = status.state.unwrap().terminated.unwrap().message.unwrap();
        assert_eq!(message.len(), 2048);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_two_families_shows_the_nodes_first() {
    for (node_ip, v6_first) in [("192.0.2.1", false), ("2001:db8::1", true)] {
        let node = Node::new();
        node.runtime.set_dual_stack(true);
        let mut options = node.options();
        options.node.ips = vec![node_ip.parse().unwrap()];
        let kubelet = node.start_with(options);
        let ips = json!({"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}});
        let spec = json!({"containers": [{"name": "c", "image": IMAGE, "env": [ips]}]});
        kubelet.add(pod("web", "u1", spec)).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        let sandbox = node.runtime.sandboxes().remove(0);
        let mut expected = [sandbox.ip, sandbox.second_ip];
        if v6_first {
            expected.reverse();
        }
        let status = kubelet.status("web");
        assert_eq!(status.pod_ip.as_deref(), Some(&*expected[0]));
        let shown = status.pod_ips.unwrap().into_iter().map(|ip| ip.ip);
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        let config = node.runtime.running("c")[0].config.clone();
        let mut variables = config.envs.into_iter();
        let told = variables.find(|variable| variable.key == "IPS").unwrap();
        assert_eq!(told.value, expected.join(",").into_bytes());
        let hosts = node.dir.path().join("kubelet/pods/u1/etc-hosts");
        let hosts = std::fs::read_to_string(hosts).unwrap();
        for ip in &expected {
            assert!(hosts.contains(&format!("{ip}\tweb")), "{hosts}");
        }
    }
}
