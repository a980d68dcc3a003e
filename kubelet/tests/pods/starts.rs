//! Starts of pods, their admission and their status.

use fake_runtime::{Behaviour, Verb};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// A pod that is not critical, unlike a static pod.
fn api_pod(name: &str, spec: Value) -> Pod {
    let mut pod = pod(name, name, spec);
    pod.metadata.annotations = None;
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_comes_to_run_with_a_full_status() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;

    let status = kubelet.status("web");
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let conditions = status.conditions.unwrap();
    let names: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        names,
        [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
    assert!(
        conditions.iter().all(|c| c.status == "True"),
        "{conditions:?}"
    );

    let container = kubelet.container("web");
    let id = node.runtime.running("c")[0].id.clone();
    assert!(
        container
            .container_id
            .unwrap()
            .ends_with(&format!("://{id}"))
    );
    assert!(container.ready && container.started == Some(true));
    assert_eq!(
        (container.restart_count, container.image.as_str()),
        (0, "docker.io/library/busybox:1")
    );

    let config = &node.runtime.containers()[0].config;
    assert_eq!(config.labels["io.kubernetes.pod.uid"], "u1");
    assert_eq!(config.log_path, "c/0.log");
    assert!(node.dir.path().join("logs/default_web_u1/c").is_dir());
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_before_the_others() {
    let node = Node::new();
    let done = Behaviour {
        exits_after: Some((2 * SECOND, 0)),
        ..Behaviour::default()
    };
    node.runtime.behave("i", done.clone());
    node.runtime.behave("j", done);
    let kubelet = node.start();
    let init = |name: &str| json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never"});
    let spec = json!({"initContainers": [init("i"), init("j")]});
    kubelet.add(pod("web", "u1", spec)).await;
    until("the first", 2 * SECOND, || {
        node.runtime.running("i").len() == 1
    })
    .await;
    assert!(node.runtime.running("c").is_empty());
    assert_eq!(kubelet.phase("web"), "Pending");
    assert_eq!(kubelet.waiting("web"), "PodInitializing");
    kubelet.until_phase("web", "Running", 10 * SECOND).await;

    let order: Vec<String> = node
        .runtime
        .containers()
        .iter()
        .map(|c| c.name().to_owned())
        .collect();
    assert_eq!(order, ["i", "j", "c"]);
    let init = kubelet.status("web").init_container_statuses.unwrap();
    assert!(init.iter().all(|status| status.ready));
}

#[tokio::test(start_paused = true)]
async fn files_of_the_pod_are_mounted_and_its_last_words_read() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({
        "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["alias"]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{
            "name": "c", "image": IMAGE, "terminationMessagePath": "/dev/last",
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}]
        }]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let mounts = node.runtime.containers()[0].config.mounts.clone();
    let host_path = |path: &str| {
        let mount = mounts.iter().find(|mount| mount.container_path == path);
        mount.unwrap().host_path.clone()
    };
    assert!(std::path::Path::new(&host_path("/v")).is_dir());
    assert!(
        mounts
            .iter()
            .any(|mount| mount.container_path == "/v" && mount.readonly)
    );
    let hosts = std::fs::read_to_string(host_path("/etc/hosts")).unwrap();
    let ip = kubelet.status("web").pod_ip.unwrap();
    assert!(hosts.contains(&format!("{ip}\tweb\n")) && hosts.contains("192.0.2.9\talias\n"));

    std::fs::write(host_path("/dev/last"), "goodbye").unwrap();
    node.runtime.exit_container("c", 3);
    until("its end", 3 * SECOND, || {
        kubelet.container("web").restart_count == 1
    })
    .await;
    let last = kubelet
        .container("web")
        .last_state
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!(
        (last.exit_code, last.message.as_deref()),
        (3, Some("goodbye"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_costs_next_to_nothing() {
    let node = Node::new();
    let kubelet = node.start();
    for index in 0..5 {
        let name = format!("web-{index}");
        kubelet.add(pod(&name, &name, json!({}))).await;
    }
    for index in 0..5 {
        let name = format!("web-{index}");
        kubelet.until_phase(&name, "Running", 5 * SECOND).await;
    }
    tokio::time::sleep(5 * SECOND).await;
    let count = || {
        let calls: usize = Verb::ALL.iter().map(|verb| node.runtime.calls(*verb)).sum();
        let lists =
            node.runtime.calls(Verb::ListContainers) + node.runtime.calls(Verb::ListPodSandbox);
        (calls, lists, node.runtime.calls(Verb::Status))
    };
    let before = count();
    tokio::time::sleep(30 * SECOND).await;
    let after = count();
    let [calls, lists, states] = [after.0 - before.0, after.1 - before.1, after.2 - before.2];
    assert_eq!(calls, lists + states, "only lists, and whether it is ready");
    assert!(lists <= 4, "{before:?} {after:?}");
    // One status call every five seconds, as upstream.
    assert!((5..=7).contains(&states), "{before:?} {after:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_supported_is_rejected_by_name() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]});
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Failed", SECOND).await;
    let status = kubelet.status("web");
    assert_eq!(status.reason.as_deref(), Some("UnsupportedPodSpec"));
    assert!(status.message.unwrap().contains("spec.volumes[0].rbd"));
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 0);
    kubelet.remove(pod("web", "u1", spec)).await;
    until("its end", SECOND, || kubelet.kubelet.pods().is_empty()).await;
}

/// The runtime may finish a call of an earlier kubelet after the pod was rejected.
#[tokio::test(start_paused = true)]
async fn a_sandbox_of_a_rejected_pod_does_not_stay() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]});
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Failed", SECOND).await;
    tokio::time::sleep(10 * SECOND).await;
    node.runtime.add_sandbox_of("web", "u1");
    until("the sandbox to go", 60 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    assert_eq!(kubelet.phase("web"), "Failed");
    let reason = kubelet.status("web").reason;
    assert_eq!(reason.as_deref(), Some("UnsupportedPodSpec"));
}

#[tokio::test(start_paused = true)]
async fn a_full_node_rejects_the_rest() {
    let node = Node::new();
    let mut options = node.options();
    options.capacity.max_pods = 1;
    let kubelet = node.start_with(options);
    kubelet.add(pod("a", "a", json!({}))).await;
    kubelet.add(pod("b", "b", json!({}))).await;
    kubelet.add(api_pod("c", json!({}))).await;
    kubelet.until_phase("a", "Running", 3 * SECOND).await;
    assert_eq!(kubelet.status("c").reason.as_deref(), Some("OutOfpods"));
    // A static pod is critical, but finds no pod to preempt.
    let status = kubelet.status("b");
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert!(
        status
            .message
            .unwrap()
            .ends_with("resources: [(res: pods, q: 1), ]")
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_node_lacks_or_is_not_is_told_by_reason() {
    let node = Node::new();
    let kubelet = node.start();
    let with = |requests: Value, port: i32| {
        json!({"containers": [{
            "name": "c", "image": IMAGE, "resources": {"requests": requests},
            "ports": [{"containerPort": 80, "hostPort": port}]
        }]})
    };
    for (name, spec, reason) in [
        ("fits", with(json!({"cpu": "10m"}), 80), None),
        ("cpu", with(json!({"cpu": "100k"}), 81), Some("OutOfcpu")),
        (
            "memory",
            with(json!({"memory": "1Ei"}), 82),
            Some("OutOfmemory"),
        ),
        (
            "disk",
            with(json!({"ephemeral-storage": "1Ei"}), 83),
            Some("OutOfephemeral-storage"),
        ),
        ("port", with(json!({}), 80), Some("NodePorts")),
        (
            "selector",
            json!({"nodeSelector": {"disk": "ssd"}}),
            Some("NodeAffinity"),
        ),
        (
            "here",
            json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
            None,
        ),
        (
            "os",
            json!({"os": {"name": "windows"}}),
            Some("PodOSNotSupported"),
        ),
    ] {
        kubelet.add(api_pod(name, spec)).await;
        match reason {
            None => kubelet.until_phase(name, "Running", 3 * SECOND).await,
            Some(reason) => {
                until("its end", SECOND, || kubelet.phase(name) == "Failed").await;
                assert_eq!(kubelet.status(name).reason.as_deref(), Some(reason));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_runs_once_the_pods_it_needs_the_room_of_have_ended() {
    let node = Node::new();
    let mut options = node.options();
    options.capacity.max_pods = 2;
    let kubelet = node.start_with(options);
    let spec = |priority: i32| json!({"priority": priority, "terminationGracePeriodSeconds": 20});
    // The preempted pod terminates slowly.
    let slow = Behaviour {
        stops_after: Some(10 * SECOND),
        ..Behaviour::default()
    };
    node.runtime.behave("c", slow);
    for (name, priority) in [("low", 1), ("high", 1000)] {
        kubelet.add(api_pod(name, spec(priority))).await;
        kubelet.until_phase(name, "Running", 3 * SECOND).await;
    }
    kubelet
        .add(pod("critical", "critical", spec(2_000_000_000)))
        .await;
    until("its end", 3 * SECOND, || kubelet.phase("low") == "Failed").await;
    let status = kubelet.status("low");
    assert_eq!(status.reason.as_deref(), Some("Preempting"));
    let conditions = status.conditions.unwrap();
    let disruption = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
    assert_eq!(
        disruption.unwrap().reason.as_deref(),
        Some("TerminationByKubelet")
    );
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(
        node.ready_sandboxes().len(),
        2,
        "it began before there was room"
    );
    kubelet
        .until_phase("critical", "Running", 20 * SECOND)
        .await;
    assert_eq!(kubelet.phase("high"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_preempted_pod_whose_containers_end_well_has_succeeded() {
    let node = Node::new();
    let mut options = node.options();
    options.capacity.max_pods = 1;
    let kubelet = node.start_with(options);
    let well = Behaviour {
        stop_code: 0,
        ..Behaviour::default()
    };
    node.runtime.behave("c", well);
    kubelet.add(api_pod("low", json!({"priority": 1}))).await;
    kubelet.until_phase("low", "Running", 3 * SECOND).await;
    let critical = pod("critical", "critical", json!({"priority": 2_000_000_000}));
    kubelet.add(critical).await;
    kubelet
        .until_phase("critical", "Running", 20 * SECOND)
        .await;
    let status = kubelet.status("low");
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!((status.reason, status.message), (None, None));
    let conditions = status.conditions.unwrap();
    assert!(conditions.iter().any(|c| c.type_ == "DisruptionTarget"));
}

/// The source sends the pods of a restarted kubelet at once, the oldest first.
#[tokio::test(start_paused = true)]
async fn pods_that_ended_before_a_restart_take_no_room() {
    let node = Node::new();
    let mut options = node.options();
    options.capacity.max_pods = 1;
    let kubelet = node.start_with(options.clone());
    let ends = Behaviour {
        exits_after: Some((SECOND, 0)),
        ..Behaviour::default()
    };
    node.runtime.behave("c", ends);
    let mut job = api_pod("job", json!({"restartPolicy": "Never"}));
    kubelet.add(job.clone()).await;
    kubelet.until_phase("job", "Succeeded", 5 * SECOND).await;
    job.status = Some(kubelet.status("job"));
    node.runtime.behave("c", Behaviour::default());
    let mut web = api_pod("web", json!({}));
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    web.status = Some(kubelet.status("web"));
    kubelet.stop().await;

    let kubelet = node.start_with(options);
    kubelet.add_all(vec![job, web]).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(kubelet.phase("job"), "Succeeded");
    assert_eq!(kubelet.phase("web"), "Running");
    assert_eq!(node.runtime.running("c").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn running_pods_are_told_from_the_runtime() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let pods = kubelet.kubelet.running_pods().await.unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].metadata.name.as_deref(), Some("web"));
    let containers = &pods[0].spec.as_ref().unwrap().containers;
    assert_eq!(containers[0].image.as_deref(), Some(IMAGE));
    assert!(kubelet.kubelet.healthy().is_ok());
}
