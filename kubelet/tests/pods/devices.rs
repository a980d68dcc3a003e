//! Containers with devices of device plugins.

use std::path::PathBuf;

use cri_proto::{
    deviceplugin::v1beta1::{
        CdiDevice, ContainerAllocateResponse, DevicePluginOptions, DeviceSpec, Mount,
    },
    runtime::v1::ContainerConfig,
};
use fake_device_plugin::{Call, FakeDevicePlugin, Serving, VARIABLE};
use fake_runtime::Verb;
use serde_json::{Value, json};

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    pod_resources,
};

const GPU: &str = "vendor.example/gpu";

fn dir(node: &Node) -> PathBuf {
    node.options().node.root_dir.join("device-plugins")
}

/// Serves and registers a plugin.
async fn serve(node: &Node, plugin: &FakeDevicePlugin) -> Serving {
    let serving = plugin.serve(&dir(node)).unwrap();
    plugin.register(&dir(node)).await.unwrap();
    serving
}

/// Waits until pods can have some devices.
async fn until_ready(kubelet: &Running) {
    let devices = kubelet.kubelet.device_manager().unwrap();
    until("the plugin", 5 * SECOND, || {
        let amounts = devices.capacity();
        amounts.allocatable.get(GPU).is_some_and(|count| *count > 0)
    })
    .await;
}

/// A node whose plugin had one device and is gone.
async fn with_a_plugin_that_is_gone() -> (Node, Running, FakeDevicePlugin) {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0"]);
    let serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    drop(serving);
    let devices = kubelet.kubelet.device_manager().unwrap();
    until("the plugin to be gone", 5 * SECOND, || {
        devices.capacity().allocatable.get(GPU) == Some(&0)
    })
    .await;
    (node, kubelet, plugin)
}

fn spec(count: u32) -> Value {
    let list = json!({GPU: count.to_string()});
    json!({"containers": [{
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "OWN", "value": "1"}],
        "resources": {"requests": list, "limits": list}
    }]})
}

/// The configs of a pod's running containers.
fn configs(node: &Node, uid: &str) -> Vec<ContainerConfig> {
    let sandboxes = node.runtime.sandboxes().into_iter();
    let of_pod: Vec<String> = sandboxes
        .filter(|sandbox| sandbox.pod_uid() == uid)
        .map(|sandbox| sandbox.id)
        .collect();
    let containers = node.runtime.running("c").into_iter();
    let of_pod = containers.filter(|container| of_pod.contains(&container.sandbox_id));
    of_pod.map(|container| container.config).collect()
}

/// The devices of a pod's running container.
fn devices(node: &Node, uid: &str) -> String {
    let configs = configs(node, uid);
    let mut variables = configs.iter().flat_map(|config| &config.envs);
    let variable = variables.find(|variable| variable.key == VARIABLE);
    let value = variable.map(|variable| variable.value.clone());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

fn health(kubelet: &Running, name: &str) -> Value {
    serde_json::to_value(kubelet.container(name).allocated_resources_status).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_container_gets_what_its_devices_need_and_shows_their_health() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0", "1"]);
    plugin.set_response(ContainerAllocateResponse {
        envs: [("OWN".to_owned(), "2".to_owned())].into(),
        mounts: vec![Mount {
            container_path: "/usr/lib/gpu".to_owned(),
            host_path: "/opt/gpu".to_owned(),
            read_only: true,
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/gpu".to_owned(),
            host_path: "/dev/null".to_owned(),
            permissions: "rw".to_owned(),
        }],
        annotations: [("vendor.example/a".to_owned(), "b".to_owned())].into(),
        cdi_devices: vec![CdiDevice {
            name: "vendor.example/gpu=0".to_owned(),
        }],
    });
    let _serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    kubelet.add(pod("a", "u1", spec(1))).await;
    kubelet.until_phase("a", "Running", 3 * SECOND).await;
    assert_eq!(devices(&node, "u1"), "0");
    let config = &configs(&node, "u1")[0];
    let own = config.envs.iter().filter(|variable| variable.key == "OWN");
    assert_eq!(own.map(|it| &*it.value).collect::<Vec<_>>(), [b"1"]);
    let mount = &config.mounts[0];
    assert_eq!((&*mount.host_path, mount.readonly), ("/opt/gpu", true));
    assert_eq!(config.devices[0].container_path, "/dev/gpu");
    assert_eq!(config.annotations["vendor.example/a"], "b");
    assert_eq!(config.cdi_devices[0].name, "vendor.example/gpu=0");

    let shown =
        |health: &str| json!([{"name": GPU, "resources": [{"resourceID": "0", "health": health}]}]);
    assert_eq!(health(&kubelet, "a"), shown("Healthy"));
    plugin.set_healthy("0", false);
    until("the device to be unhealthy", 5 * SECOND, || {
        health(&kubelet, "a") == shown("Unhealthy")
    })
    .await;
    assert_eq!(kubelet.phase("a"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_pod_keeps_its_devices_over_a_restart_of_the_kubelet_without_the_plugin() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0", "1"]);
    let serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    let first = pod("first", "u0", spec(1));
    kubelet.add(first.clone()).await;
    kubelet.until_phase("first", "Running", 3 * SECOND).await;
    let old = pod("old", "u1", spec(1));
    kubelet.add(old.clone()).await;
    kubelet.until_phase("old", "Running", 3 * SECOND).await;
    kubelet.remove(first).await;
    until("the pod to end", 60 * SECOND, || {
        configs(&node, "u0").is_empty()
    })
    .await;
    kubelet.stop().await;
    drop(serving);

    let kubelet = node.start();
    kubelet.add_all(vec![pod("new", "u2", spec(1)), old]).await;
    tokio::time::sleep(25 * SECOND).await;
    assert_eq!(
        kubelet.phase("old"),
        "Running",
        "{:#?}",
        kubelet.status("old")
    );
    assert_eq!(devices(&node, "u1"), "1");
    // The new one waits for the plugin.
    assert!(configs(&node, "u2").is_empty());
    let _serving = serve(&node, &plugin).await;
    kubelet.until_phase("new", "Running", 10 * SECOND).await;
    assert_eq!(devices(&node, "u2"), "0");
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_same_devices_after_a_reboot_when_its_plugin_is_there() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0", "1", "2"]);
    let serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    let mut pods = vec![pod("a", "u1", spec(1)), pod("b", "u2", spec(2))];
    kubelet.add_all(pods.clone()).await;
    kubelet.until_phase("a", "Running", 3 * SECOND).await;
    kubelet.until_phase("b", "Running", 3 * SECOND).await;
    let before = [devices(&node, "u1"), devices(&node, "u2")];
    // As their source has them.
    for (pod, name) in pods.iter_mut().zip(["a", "b"]) {
        pod.status = Some(kubelet.status(name));
    }
    kubelet.stop().await;
    drop(serving);
    node.runtime.reboot();
    plugin.take_calls();

    let kubelet = node.start();
    kubelet.add_all(pods).await;
    tokio::time::sleep(25 * SECOND).await;
    assert!(configs(&node, "u1").is_empty() && configs(&node, "u2").is_empty());
    for name in ["a", "b"] {
        let status = kubelet.status(name);
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.find(|one| one.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "False");
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert!(state.running.is_none(), "{state:?}");
    }
    let _serving = serve(&node, &plugin).await;
    for (uid, before) in [("u1", &before[0]), ("u2", &before[1])] {
        let is_started = || devices(&node, uid) == *before;
        until("the same devices", 10 * SECOND, is_started).await;
    }
    assert_eq!(plugin.take_calls(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_plugin_keeps_its_dead_containers() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0"]);
    let serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    let own = pod("a", "u1", spec(1));
    kubelet.add(own.clone()).await;
    kubelet.until_phase("a", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    drop(serving);
    node.runtime.exit_container("c", 1);

    let kubelet = node.start();
    kubelet.add(own).await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(node.runtime.containers().len(), 1);
    let _serving = serve(&node, &plugin).await;
    until("the restart", 15 * SECOND, || {
        kubelet.container("a").restart_count == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_come_back_is_not_waited_for_forever() {
    let (_node, kubelet, _plugin) = with_a_plugin_that_is_gone().await;
    kubelet.add(pod("a", "u1", spec(1))).await;
    tokio::time::sleep(25 * SECOND).await;
    assert_ne!(kubelet.phase("a"), "Failed");
    kubelet.until_phase("a", "Failed", 15 * SECOND).await;
    let status = kubelet.status("a");
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let says = "Pod was rejected: Allocate failed due to no healthy devices present; cannot \
                allocate unhealthy devices vendor.example/gpu, which is unexpected";
    assert_eq!(status.message.as_deref(), Some(says));
    assert_eq!(pod_resources::listed(&kubelet).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_not_run_without_its_devices_when_the_node_gives_up_their_resource() {
    let (_node, kubelet, _plugin) = with_a_plugin_that_is_gone().await;
    let devices = kubelet.kubelet.device_manager().unwrap();
    tokio::time::sleep(301 * SECOND).await;
    // As each report of the node's status does.
    devices.capacity();
    kubelet.add(pod("a", "u1", spec(1))).await;
    kubelet.until_phase("a", "Failed", 15 * SECOND).await;
    let message = kubelet.status("a").message.unwrap();
    let says = "cannot allocate unregistered device vendor.example/gpu";
    assert!(message.contains(says), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_plugin_refuses_is_rejected_and_others_get_its_devices() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0"]);
    let _serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    plugin.refuse(Some("no power"));
    kubelet.add(pod("a", "u1", spec(1))).await;
    kubelet.until_phase("a", "Failed", 3 * SECOND).await;
    let status = kubelet.status("a");
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert!(status.message.unwrap().contains("no power"));
    plugin.refuse(None);
    kubelet.add(pod("b", "u2", spec(1))).await;
    kubelet.until_phase("b", "Running", 3 * SECOND).await;
    assert_eq!(devices(&node, "u2"), "0");
    // More than there are.
    kubelet.add(pod("c", "u3", spec(1))).await;
    kubelet.until_phase("c", "Failed", 3 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_it_waits_for_a_plugin_leaves_nothing() {
    let (node, kubelet, plugin) = with_a_plugin_that_is_gone().await;
    let waiting = pod("a", "u1", spec(1));
    kubelet.add(waiting.clone()).await;
    tokio::time::sleep(SECOND).await;
    kubelet.remove(waiting).await;
    tokio::time::sleep(SECOND).await;
    let _serving = serve(&node, &plugin).await;
    kubelet.add(pod("b", "u2", spec(1))).await;
    kubelet.until_phase("b", "Running", 5 * SECOND).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(plugin.take_calls().len(), 1);
    assert!(configs(&node, "u1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_told_of_each_start_and_asked_for_its_preference() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new(GPU, &["0", "1", "2"]);
    plugin.set_options(DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    });
    plugin.set_preferred(&["2"]);
    let _serving = serve(&node, &plugin).await;
    until_ready(&kubelet).await;
    kubelet.add(pod("a", "u1", spec(1))).await;
    kubelet.until_phase("a", "Running", 3 * SECOND).await;
    let ids = |ids: &[&str]| -> Vec<String> { ids.iter().map(|&id| id.to_owned()).collect() };
    let calls = [
        Call::Prefer(ids(&["0", "1", "2"]), Vec::new()),
        Call::Allocate(ids(&["2"])),
        Call::PreStart(ids(&["2"])),
    ];
    assert_eq!(plugin.take_calls(), calls);
    plugin.refuse(Some("reset failed"));
    node.runtime.exit_container("c", 1);
    until("the refusal", 60 * SECOND, || {
        kubelet.waiting("a") == "CreateContainerConfigError"
    })
    .await;
    plugin.refuse(None);
    until("the restart", 60 * SECOND, || devices(&node, "u1") == "2").await;
    let calls = plugin.take_calls();
    assert!(calls.len() >= 2, "{calls:?}");
    assert!(
        calls
            .iter()
            .all(|call| *call == Call::PreStart(ids(&["2"])))
    );
}

#[tokio::test(start_paused = true)]
async fn resources_without_a_plugin_need_none() {
    let node = Node::new();
    let kubelet = node.start();
    let plugin = FakeDevicePlugin::new("vendor.example/other", &["0"]);
    let _serving = serve(&node, &plugin).await;
    // The node does not have this resource.
    kubelet.add(pod("a", "u1", spec(1))).await;
    kubelet.until_phase("a", "Failed", 3 * SECOND).await;
    let status = kubelet.status("a");
    assert_eq!(status.reason.as_deref(), Some("UnsupportedPodSpec"));
    assert_eq!(plugin.take_calls(), []);
}
