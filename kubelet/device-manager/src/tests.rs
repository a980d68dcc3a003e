mod placement;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use cri_proto::deviceplugin::v1beta1::{
    ContainerAllocateResponse, Device as ReportedDevice, DevicePluginOptions, ListAndWatchResponse,
    Mount,
};
use fake_device_plugin::{Call, FakeDevicePlugin, VARIABLE, device};
use kubelet_plugin_manager::{Plugin, PluginHandler as _};
use kubelet_pod_spec::identity::PodUid;
use kubelet_topology_manager::NodeMask;
use tokio::time::{sleep, timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use super::*;
use crate::{checkpoint::FILE, ledger::WAIT, plugin::DevicePlugin};

const GPU: &str = "vendor.example/gpu";
const SOON: Duration = Duration::from_secs(30);

/// A manager that serves registrations.
struct Rig {
    manager: DeviceManager,
    _cancel: DropGuard,
    _server: AbortOnDropHandle<()>,
}

impl Rig {
    fn start(dir: &Path) -> Self {
        let manager = DeviceManager::start(dir, NodeMask::default());
        let listener = manager.bind().unwrap();
        let cancel = CancellationToken::new();
        let served = manager.clone().serve(listener, cancel.clone());
        Self {
            manager,
            _cancel: cancel.drop_guard(),
            _server: AbortOnDropHandle::new(tokio::spawn(served)),
        }
    }

    /// Waits until the node has `all` devices, and pods can have `healthy` of them.
    async fn has(&self, all: usize, healthy: usize) {
        self.until(|manager| {
            let amounts = manager.capacity();
            amounts.capacity.get(GPU) == Some(&all)
                && amounts.allocatable.get(GPU) == Some(&healthy)
        })
        .await;
    }

    async fn until(&self, is_true: impl Fn(&DeviceManager) -> bool) {
        let waits = async {
            while !is_true(&self.manager) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(SOON, waits).await;
        assert!(waited.is_ok(), "{:?}", self.manager.capacity());
    }

    fn assign(&self, pod: &str, count: usize) -> Result<(), Obstacle> {
        let (reusable, preferences) = (Reusable::default(), Preferences::new());
        let mut ledger = self.manager.ledger();
        ledger.assign(request(pod, count), &reusable, None, &preferences)
    }

    /// The variable with the devices of a pod's container.
    async fn variable(&self, pod: &str) -> String {
        let prepared = self.manager.prepare(&PodUid::from(pod), "c").await.unwrap();
        let variable = prepared.variables.get(VARIABLE).cloned();
        variable.unwrap_or_default()
    }
}

fn request(pod: &str, count: usize) -> DeviceRequest<'_> {
    DeviceRequest {
        pod,
        container: "c",
        resource: GPU,
        count,
    }
}

async fn plugin(dir: &Path, devices: &[&str]) -> (FakeDevicePlugin, fake_device_plugin::Serving) {
    let plugin = FakeDevicePlugin::new(GPU, devices);
    let serving = plugin.serve(dir).unwrap();
    plugin.register(dir).await.unwrap();
    (plugin, serving)
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|&id| id.to_owned()).collect()
}

#[tokio::test]
async fn a_machine_is_new_until_its_node_object_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let start = || DeviceManager::start(dir.path(), NodeMask::default());
    start().save().await.unwrap();
    let manager = start();
    assert!(manager.is_unrecorded());
    manager.record();
    manager.save().await.unwrap();
    assert!(!manager.is_unrecorded() && !start().is_unrecorded());
    // It is not known what a damaged file told.
    fs::write(dir.path().join(FILE), "{").unwrap();
    assert!(!start().is_unrecorded());
}

#[tokio::test]
async fn containers_keep_their_devices_over_a_restart_of_the_kubelet_and_of_the_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let (fake, serving) = plugin(dir.path(), &["0", "1", "2"]).await;
    rig.has(3, 3).await;
    rig.assign("a", 2).unwrap();
    let uid = PodUid::from("a");
    rig.manager.allocate(&uid).await.unwrap();
    assert_eq!(fake.take_calls(), [Call::Allocate(ids(&["0", "1"]))]);
    assert_eq!(rig.variable("a").await, "0,1");
    rig.manager.save().await.unwrap();
    drop(rig);

    let rig = Rig::start(dir.path());
    // The plugin sees that its socket is gone, and registers again.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    assert_eq!(rig.variable("a").await, "0,1");
    rig.has(0, 0).await;
    let awaited = Obstacle::Awaited(GPU.to_owned());
    assert_eq!(rig.manager.ledger().check("a"), Err(awaited.clone()));
    assert_eq!(rig.assign("b", 1), Err(awaited));
    assert!(rig.manager.assignable()[GPU] > 1_000_000);
    drop(serving);
    let serving = fake.serve(dir.path()).unwrap();
    fake.register(dir.path()).await.unwrap();
    rig.has(3, 3).await;
    assert_eq!(rig.manager.ledger().check("a"), Ok(()));
    rig.assign("b", 1).unwrap();
    rig.manager.allocate(&PodUid::from("b")).await.unwrap();
    assert_eq!(rig.variable("b").await, "2");

    // The plugin is gone: its devices are not given to others.
    drop(serving);
    rig.has(3, 0).await;
    assert_eq!(rig.variable("a").await, "0,1");
    assert_eq!(rig.manager.assignable()[GPU], usize::MAX);
    assert!(rig.manager.ledger().release_gone(|pod, _| pod == "a"));
    assert_eq!(rig.variable("b").await, "");
}

#[tokio::test]
async fn a_plugin_that_refuses_gives_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let (fake, _serving) = plugin(dir.path(), &["0"]).await;
    rig.has(1, 1).await;
    fake.refuse(Some("no power"));
    rig.assign("a", 1).unwrap();
    let error = rig.manager.allocate(&PodUid::from("a")).await.unwrap_err();
    let says = "device plugin Allocate rpc of vendor.example/gpu failed with err: no power";
    assert_eq!(error.to_string(), says);
    // Others can have the device.
    fake.refuse(None);
    fake.set_response(ContainerAllocateResponse {
        mounts: vec![Mount {
            host_path: "relative".to_owned(),
            container_path: "/c".to_owned(),
            read_only: false,
        }],
        ..ContainerAllocateResponse::default()
    });
    rig.assign("b", 1).unwrap();
    let error = rig.manager.allocate(&PodUid::from("b")).await.unwrap_err();
    let says = "device plugin of vendor.example/gpu: invalid answer to Allocate: \
                mounts[0].host_path: \"relative\" is no absolute path";
    assert_eq!(error.to_string(), says);
    fake.set_response(ContainerAllocateResponse::default());
    rig.assign("c", 1).unwrap();
    rig.manager.allocate(&PodUid::from("c")).await.unwrap();
    let Err(Obstacle::Failed(error)) = rig.assign("d", 1) else {
        panic!("there is no second device");
    };
    let says = "requested number of devices unavailable for vendor.example/gpu. Requested: 1, \
                Available: 0";
    assert_eq!(error.to_string(), says);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_asked_before_a_start_if_it_wants_that() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let fake = FakeDevicePlugin::new(GPU, &["0"]);
    fake.set_options(DevicePluginOptions {
        pre_start_required: true,
        ..DevicePluginOptions::default()
    });
    let serving = fake.serve(dir.path()).unwrap();
    fake.register(dir.path()).await.unwrap();
    rig.has(1, 1).await;
    rig.assign("a", 1).unwrap();
    let uid = PodUid::from("a");
    rig.manager.allocate(&uid).await.unwrap();
    fake.take_calls();
    rig.manager.prepare(&uid, "c").await.unwrap();
    assert_eq!(fake.take_calls(), [Call::PreStart(ids(&["0"]))]);
    fake.refuse(Some("reset failed"));
    let error = rig.manager.prepare(&uid, "c").await.unwrap_err();
    assert!(error.to_string().ends_with("err: reset failed"), "{error}");
    drop(serving);
    rig.has(1, 0).await;
    let stopped = Err(DeviceError::Stopped(GPU.to_owned()));
    assert_eq!(rig.manager.prepare(&uid, "c").await, stopped);
    // Nor after the node has given up its resource.
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(rig.manager.capacity().capacity[GPU], 0);
    assert_eq!(rig.manager.prepare(&uid, "c").await, stopped);
}

#[tokio::test(start_paused = true)]
async fn devices_of_the_plugin_before_are_not_those_of_the_next_one() {
    let mut ledger = ledger(&[device("a", &[])], DevicePluginOptions::default());
    assert_eq!(ledger.allocatable().len(), 1);
    // Plugins that end before they have reported their devices.
    for awaited in [true, true, true, false] {
        let plugin = ledger.resources[GPU].plugin().unwrap().clone();
        assert!(ledger.disconnected(&plugin));
        ledger.connected(
            GPU,
            DevicePlugin::unserved(GPU, DevicePluginOptions::default()),
        );
        assert_eq!(ledger.allocatable().len(), 0);
        assert_eq!(ledger.is_awaited(GPU), awaited);
        tokio::time::advance(WAIT * 101 / 300).await;
    }
}

#[tokio::test]
async fn the_health_of_devices_is_reported_for_the_pods_that_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let (fake, _serving) = plugin(dir.path(), &["0", "1"]).await;
    rig.has(2, 2).await;
    rig.assign("a", 1).unwrap();
    let uid = PodUid::from("a");
    rig.manager.allocate(&uid).await.unwrap();
    fake.set_healthy("1", false);
    rig.has(2, 1).await;
    fake.set_healthy("0", false);
    let changed = timeout(SOON, rig.manager.changed_pods()).await.unwrap();
    assert_eq!(changed, BTreeSet::from([uid.clone()]));
    let health = rig.manager.health_of(&uid, "c");
    assert_eq!(health[GPU], [("0".to_owned(), false)].into());
    let error = DeviceError::NoHealthy(GPU.to_owned());
    assert_eq!(rig.manager.ledger().check("a"), Err(error.into()));
    fake.set_healthy("1", true);
    rig.has(2, 1).await;
    let error = DeviceError::NoLongerHealthy(GPU.to_owned());
    assert_eq!(rig.manager.ledger().check("a"), Err(error.into()));
    // The pod keeps the failed one, and another pod can have the other one.
    assert_eq!(rig.manager.assignable()[GPU], 2);
}

#[tokio::test]
async fn a_plugin_that_registers_again_replaces_itself() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let (_old, serving) = plugin(dir.path(), &["0"]).await;
    rig.has(1, 1).await;
    let (_new, _new_serving) = plugin(dir.path(), &["0", "1"]).await;
    rig.has(2, 2).await;
    // The end of the first one is not the end of the second one.
    std::mem::forget(serving);
    sleep(Duration::from_millis(100)).await;
    rig.has(2, 2).await;
    // Nor is the end of another one that the plugin watcher knew.
    rig.manager.deregister(&Plugin {
        name: GPU.to_owned(),
        endpoint: dir.path().join("other.sock"),
        versions: Vec::new(),
    });
    rig.has(2, 2).await;
}

#[tokio::test]
async fn a_server_that_has_ended_is_unhealthy() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    tokio::time::pause();
    let unserved = FakeDevicePlugin::new(GPU, &[]).register(dir.path()).await;
    tokio::time::resume();
    unserved.unwrap_err();
    assert_eq!(rig.manager.health(), Ok(()));
    let manager = rig.manager.clone();
    drop(rig);
    while manager.health().is_ok() {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn registrations_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let good = FakeDevicePlugin::new(GPU, &[]);
    let bad = FakeDevicePlugin::new("gpu", &[]);
    for (plugin, version, endpoint, says) in [
        (
            &good,
            "v1",
            "a.sock",
            "requested API version [\"v1\"] is not",
        ),
        (
            &bad,
            "v1beta1",
            "a.sock",
            "the ResourceName \"gpu\" is invalid",
        ),
        (
            &good,
            "v1beta1",
            "../a.sock",
            "endpoint: \"../a.sock\" is no path",
        ),
        (
            &good,
            "v1beta1",
            "/a/../../b.sock",
            "endpoint: \"/a/../../b.sock\" is no path",
        ),
        (&good, "v1beta1", "", "endpoint: \"\" is no path"),
    ] {
        let refused = plugin.register_as(version, endpoint, dir.path()).await;
        let status = refused.unwrap_err();
        assert!(status.message().starts_with(says), "{}", status.message());
    }
    tokio::time::pause();
    let refused = good.register_as("v1beta1", "a.sock", dir.path()).await;
    tokio::time::resume();
    let status = refused.unwrap_err();
    let says = "failed to dial device plugin: cannot connect";
    assert!(status.message().starts_with(says), "{}", status.message());
    let _serving = good.serve(dir.path()).unwrap();
    good.fail_options("no options");
    let refused = good.register(dir.path()).await.unwrap_err();
    let says = "failed to get device plugin options: no options";
    assert_eq!(refused.message(), says);
    assert_eq!(rig.manager.capacity(), DeviceCapacity::default());
}

#[tokio::test]
async fn a_plugin_may_register_before_it_listens() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path());
    let plugin = FakeDevicePlugin::new(GPU, &["0"]);
    let late = async {
        sleep(Duration::from_millis(400)).await;
        plugin.serve(dir.path()).unwrap()
    };
    let (registered, _serving) = tokio::join!(plugin.register(dir.path()), late);
    registered.unwrap();
    rig.has(1, 1).await;
}

#[tokio::test]
async fn a_broken_device_does_not_become_healthy_when_its_plugin_is_gone_for_long() {
    let mut ledger = ledger(&[device("0", &[])], DevicePluginOptions::default());
    let (reusable, preferences) = (Reusable::default(), Preferences::new());
    ledger
        .assign(request("a", 1), &reusable, None, &preferences)
        .unwrap();
    let plugin = ledger.resources[GPU].plugin().unwrap().clone();
    let mut broken = device("0", &[]);
    broken.health = "Unhealthy".to_owned();
    let report = ListAndWatchResponse {
        devices: vec![broken],
    };
    ledger.reported(&plugin, &report).unwrap();
    assert!(ledger.disconnected(&plugin));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    ledger.expire();
    assert!(!ledger.resources.contains_key(GPU));
    assert_eq!(
        ledger.health_of("a", "c")[GPU],
        [("0".to_owned(), false)].into()
    );
}

#[tokio::test]
async fn what_plugins_report_stays_in_bounds() {
    let devices = [
        device(&"x".repeat(1025), &[0]),
        device("0", &[-1, 0, 63, 64]),
    ];
    let ledger = ledger(&devices, DevicePluginOptions::default());
    let known = &ledger.resources[GPU].devices;
    assert_eq!(known.keys().collect::<Vec<_>>(), ["0"]);
    assert_eq!(known["0"].nodes, [0, 63].into());
}

#[tokio::test(start_paused = true)]
async fn a_resource_without_a_plugin_is_kept_for_five_minutes() {
    let dir = tempfile::tempdir().unwrap();
    let file = r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a.b/c":[]}},"Checksum":1269956437}"#;
    fs::write(dir.path().join(FILE), file).unwrap();
    let manager = DeviceManager::start(dir.path(), NodeMask::default());
    tokio::time::advance(WAIT).await;
    assert_eq!(manager.assignable()["a.b/c"], usize::MAX);
    tokio::time::advance(Duration::from_secs(300) - WAIT).await;
    manager.save().await.unwrap();
    assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), file);
    // Pods do not wait for it any more.
    assert_eq!(manager.assignable()["a.b/c"], 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    // The node object keeps it, so that it is no resource of the cluster.
    for _ in 0..2 {
        let amounts = manager.capacity();
        assert_eq!(
            (amounts.capacity["a.b/c"], amounts.allocatable["a.b/c"]),
            (0, 0)
        );
    }
    assert_eq!(manager.assignable()["a.b/c"], 0);
    manager.save().await.unwrap();
    let file = fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(file.contains("\"RegisteredDevices\":{}"), "{file}");
}

#[tokio::test]
async fn a_damaged_file_is_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), "{").unwrap();
    let manager = DeviceManager::start(dir.path(), NodeMask::default());
    assert_eq!(manager.capacity(), DeviceCapacity::default());
    let kept = dir.path().join(FILE).with_extension("damaged");
    assert_eq!(fs::read_to_string(kept).unwrap(), "{");
}

/// A ledger of a machine with 4 NUMA nodes, and a resource with these devices.
fn ledger(devices: &[ReportedDevice], options: DevicePluginOptions) -> Ledger {
    let plugin = DevicePlugin::unserved(GPU, options);
    let checkpoint = crate::checkpoint::Checkpoint::default();
    let mut ledger = Ledger::new(checkpoint, (0..4).collect());
    ledger.connected(GPU, plugin.clone());
    let report = ListAndWatchResponse {
        devices: devices.to_vec(),
    };
    ledger.reported(&plugin, &report).unwrap();
    ledger
}
