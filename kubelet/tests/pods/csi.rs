//! Volumes of CSI drivers: what the drivers are asked for, and what pods get.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest,
    node_service_capability::rpc::Type as Capability,
    volume_capability::{AccessType, access_mode::Mode},
};
use e2e::fake_csi::{Call, FakeCsi, PUBLISHED, STAGED, Serving};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

const DRIVER: &str = "d.example.com";
/// printf handle-1 | sha256sum
const HASH: &str = "4219dcd75aa1fff692ddc5cf84c1b34bf799aaad291afdf03dde2213f2f3b397";

struct Cluster {
    node: Node,
    objects: Arc<MemoryObjects>,
    driver: FakeCsi,
}

impl Cluster {
    /// A cluster with a claim `data` of the volume `pv`, whose driver needs nothing.
    fn new() -> Self {
        let objects = Arc::<MemoryObjects>::default();
        let mut node = Node::new();
        node.objects = Arc::clone(&objects) as _;
        let on = Self {
            node,
            objects,
            driver: FakeCsi::new(DRIVER),
        };
        on.put_driver(json!({"attachRequired": false}));
        on.put_volume(json!({}), "1Gi");
        on
    }

    fn put_driver(&self, spec: Value) {
        let object = json!({"metadata": {"name": DRIVER}, "spec": spec});
        self.objects.put("csidriver", object);
    }

    /// Puts the volume, with `more` laid over its spec, and the claim that knows of so
    /// much capacity.
    fn put_volume(&self, more: Value, known: &str) {
        let mut volume = json!({
            "metadata": {"name": "pv"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "default", "name": "data", "uid": "uid-of-data"},
                "mountOptions": ["noatime"],
                "csi": {
                    "driver": DRIVER, "volumeHandle": "handle-1", "fsType": "ext4",
                    "volumeAttributes": {"pool": "fast"}
                }
            }
        });
        for (key, value) in more.as_object().unwrap() {
            volume["spec"][key] = value.clone();
        }
        self.objects.put("persistentvolume", volume);
        let claim = json!({
            "metadata": {"namespace": "default", "name": "data"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound", "capacity": {"storage": known}}
        });
        self.objects.put("persistentvolumeclaim", claim);
    }

    fn path(&self, below: &str) -> PathBuf {
        self.node.dir.path().join("kubelet").join(below)
    }

    fn serve(&self) -> Serving {
        let registration = self.path("plugins_registry/d-reg.sock");
        let endpoint = self.path("plugins/d/csi.sock");
        self.driver.serve(&registration, &endpoint).unwrap()
    }

    /// Directory of what the pods of `pv` share.
    fn staging(&self) -> PathBuf {
        let driver = self.path("plugins/kubernetes.io/csi").join(DRIVER);
        driver.join(HASH)
    }

    fn published(&self, uid: &str, name: &str) -> PathBuf {
        let dir = format!("pods/{uid}/volumes/kubernetes.io~csi/{name}/mount");
        self.path(&dir)
    }

    fn stages(&self) -> Vec<NodeStageVolumeRequest> {
        let calls = self.driver.calls().into_iter();
        let stages = calls.filter_map(|call| match call {
            Call::Stage(request) => Some(request),
            _ => None,
        });
        stages.collect()
    }

    fn publishes(&self) -> Vec<NodePublishVolumeRequest> {
        let calls = self.driver.calls().into_iter();
        let publishes = calls.filter_map(|call| match call {
            Call::Publish(request) => Some(request),
            _ => None,
        });
        publishes.collect()
    }
}

fn with(volume: Value, more: Value) -> Value {
    let mut spec = more;
    let mut volume = volume;
    volume["name"] = json!("v");
    spec["volumes"] = json!([volume]);
    spec["serviceAccountName"] = json!("builder");
    if spec["containers"].is_null() {
        spec["containers"] = json!([{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]
        }]);
    }
    spec
}

fn claimed(name: &str) -> Pod {
    claimed_with(name, json!({}))
}

/// A pod with the claim, whose UID is its name.
fn claimed_with(name: &str, more: Value) -> Pod {
    let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
    pod(name, name, with(claim, more))
}

async fn gone(kubelet: &Running, on: &Cluster, uid: &str) {
    let dir = on.path("pods").join(uid);
    until("the pod's end", 300 * SECOND, || !dir.exists()).await;
    assert_eq!(kubelet.status(uid).phase, None);
}

#[tokio::test(start_paused = true)]
async fn pods_share_what_is_staged() {
    let on = Cluster::new();
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish", "Publish"]);

    let staged = on.staging().join("globalmount");
    assert_eq!(fs::read_to_string(staged.join(STAGED)).unwrap(), "handle-1");
    let stage = &on.stages()[0];
    assert_eq!(stage.volume_id, "handle-1");
    assert_eq!(Path::new(&stage.staging_target_path), staged);
    assert_eq!(stage.volume_context["pool"], "fast");
    let capability = stage.volume_capability.clone().unwrap();
    let access = capability.access_mode.unwrap().mode();
    assert_eq!(access, Mode::SingleNodeWriter);
    let Some(AccessType::Mount(mount)) = capability.access_type else {
        panic!("{:?}", capability.access_type);
    };
    assert_eq!(
        (mount.fs_type.as_str(), mount.mount_flags),
        ("ext4", vec!["noatime".to_owned()])
    );
    let publish = &on.publishes()[1];
    assert_eq!(Path::new(&publish.staging_target_path), staged);
    assert_eq!(Path::new(&publish.target_path), on.published("b", "pv"));
    assert!(!publish.readonly);
    let seen = on.node.runtime.running("c");
    let sources: Vec<&str> = seen
        .iter()
        .flat_map(|container| &container.config.mounts)
        .filter(|mount| mount.container_path == "/v")
        .map(|mount| mount.host_path.as_str())
        .collect();
    assert_eq!(
        sources.iter().map(Path::new).collect::<Vec<_>>(),
        [on.published("a", "pv"), on.published("b", "pv")]
    );
    let data = on.published("a", "pv").with_file_name("vol_data.json");
    let data: Value = serde_json::from_str(&fs::read_to_string(data).unwrap()).unwrap();
    assert_eq!(data["driverName"], DRIVER);
    assert_eq!(data["volumeHandle"], "handle-1");
    assert_eq!(data["specVolID"], "pv");
    assert_eq!(data["volumeLifecycleMode"], "Persistent");

    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    assert_eq!(on.driver.verbs()[3..], ["Unpublish"]);
    assert!(staged.exists());
    kubelet.remove(claimed("b")).await;
    gone(&kubelet, &on, "b").await;
    until("the unstaging", 60 * SECOND, || {
        on.driver.verbs().len() == 6
    })
    .await;
    assert_eq!(on.driver.verbs()[4..], ["Unpublish", "Unstage"]);
    until("its directory's end", 10 * SECOND, || !staged.exists()).await;
    sleep(600 * SECOND).await;
    assert_eq!(on.driver.verbs().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_restart_asks_the_driver_for_nothing() {
    let on = Cluster::new();
    let driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.stop().await;

    // The driver is away for a while.
    drop(driver);
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    assert_eq!(on.node.runtime.containers().len(), 1);

    // Another pod finds it staged.
    let _driver = on.serve();
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish", "Publish"]);
    kubelet.stop().await;

    // One that went while no kubelet ran is given back by what is on disk.
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    gone(&kubelet, &on, "b").await;
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 300 * SECOND, || {
        on.driver
            .verbs()
            .ends_with(&["Unpublish", "Unpublish", "Unstage"])
    })
    .await;
    assert_eq!(on.driver.verbs().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_a_driver_that_comes_late() {
    let on = Cluster::new();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(20 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    let _driver = on.serve();
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    let registrations = on.driver.registrations();
    assert_eq!(registrations.len(), 1);
    assert!(registrations[0].plugin_registered);
}

#[tokio::test(start_paused = true)]
async fn a_pod_recovers_from_a_driver_that_fails() {
    let on = Cluster::new();
    let _driver = on.serve();
    on.driver.fail("Stage", Status::internal("no disk"));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    let verbs = on.driver.verbs();
    assert!(
        verbs.len() > 2 && verbs.iter().all(|verb| *verb == "Stage"),
        "{verbs:?}"
    );
    // The driver said that it did nothing, so that nothing is left.
    let device = on.path("plugins/kubernetes.io/csi").join(DRIVER);
    assert_eq!(fs::read_dir(&device).unwrap().count(), 0);
    on.driver.clear_faults();
    on.driver
        .fail("Publish", Status::new(Code::Unavailable, "wait"));
    until("a publish that fails", 300 * SECOND, || {
        on.driver.verbs().contains(&"Publish")
    })
    .await;
    // It may have done it, or half of it.
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 300 * SECOND, || {
        on.driver.verbs().ends_with(&["Unpublish", "Unstage"])
    })
    .await;
    on.driver.clear_faults();
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_one_pod_comes_and_goes_with_it() {
    let on = Cluster::new();
    let _driver = on.serve();
    let kubelet = on.node.start();
    let source = json!({"csi": {
        "driver": DRIVER, "readOnly": true, "volumeAttributes": {"size": "1"},
        "nodePublishSecretRef": {"name": "key"}
    }});
    let spec = with(source, json!({}));
    kubelet.add(pod("a", "a", spec.clone())).await;
    sleep(10 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), [""; 0], "the driver has no such volumes");
    on.put_driver(json!({
        "volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true,
        "tokenRequests": [{"audience": "vault"}, {"audience": ""}]
    }));
    let secret = json!({
        "metadata": {"namespace": "default", "name": "key"}, "data": {"user": "bWU="}
    });
    on.objects.put("secret", secret);
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Publish"]);
    let request = &on.publishes()[0];
    assert!(request.volume_id.starts_with("csi-") && request.volume_id.len() == 68);
    assert!(request.readonly && request.staging_target_path.is_empty());
    assert_eq!(Path::new(&request.target_path), on.published("a", "v"));
    assert_eq!(request.secrets["user"], "me");
    let context = &request.volume_context;
    assert_eq!(context["size"], "1");
    for (key, value) in [
        ("pod.name", "a"),
        ("pod.namespace", "default"),
        ("pod.uid", "a"),
        ("serviceAccount.name", "builder"),
        ("ephemeral", "true"),
    ] {
        assert_eq!(context[&format!("csi.storage.k8s.io/{key}")], value);
    }
    let tokens = &context["csi.storage.k8s.io/serviceAccount.tokens"];
    let tokens: Value = serde_json::from_str(tokens).unwrap();
    assert_eq!(tokens["vault"]["token"], "default:builder:vault");
    assert_eq!(tokens[""]["token"], "default:builder:");
    let container = &on.node.runtime.running("c")[0];
    let mount = container
        .config
        .mounts
        .iter()
        .find(|m| m.container_path == "/v");
    assert!(mount.unwrap().readonly);
    kubelet.remove(pod("a", "a", spec)).await;
    gone(&kubelet, &on, "a").await;
    assert_eq!(on.driver.verbs(), ["Publish", "Unpublish"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_must_be_attached_is_waited_for() {
    let on = Cluster::new();
    on.put_driver(json!({}));
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(10 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), [""; 0]);
    // printf handle-1d.example.comnode | sha256sum
    let name = "csi-8dacb94c639d43bfcc0fe899bab694270688cf06886ffc2da50cbc124b5bcb11";
    let attachment = |attached: bool| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "attacher": DRIVER, "nodeName": "node",
                "source": {"persistentVolumeName": "pv"}
            },
            "status": {"attached": attached, "attachmentMetadata": {"device": "sdx"}}
        })
    };
    on.objects.put("volumeattachment", attachment(false));
    sleep(60 * SECOND).await;
    assert_eq!(on.driver.verbs(), [""; 0]);
    on.objects.put("volumeattachment", attachment(true));
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    assert_eq!(on.stages()[0].publish_context["device"], "sdx");
    assert_eq!(on.publishes()[0].publish_context["device"], "sdx");
}

#[tokio::test(start_paused = true)]
async fn files_go_to_the_group_by_whoever_can() {
    let on = Cluster::new();
    let _driver = on.serve();
    let kubelet = on.node.start();
    let grouped = json!({"securityContext": {"fsGroup": 4321}});
    kubelet.add(claimed_with("a", grouped.clone())).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    let file = on.published("a", "pv").join(PUBLISHED);
    assert_eq!(fs::metadata(&file).unwrap().gid(), 4321);
    on.driver.set_capabilities(&[Capability::VolumeMountGroup]);
    kubelet.add(claimed_with("b", grouped)).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    let capability = on.publishes()[1].volume_capability.clone().unwrap();
    let Some(AccessType::Mount(mount)) = capability.access_type else {
        panic!("{:?}", capability.access_type);
    };
    assert_eq!(mount.volume_mount_group, "4321");
    let file = on.published("b", "pv").join(PUBLISHED);
    assert_ne!(fs::metadata(&file).unwrap().gid(), 4321);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_published_anew_where_its_driver_asks_for_that() {
    let on = Cluster::new();
    on.put_driver(json!({"attachRequired": false, "requiresRepublish": true}));
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    until("more publishes", 300 * SECOND, || on.publishes().len() > 2).await;
    assert_eq!(on.stages().len(), 1);
    // One that fails is no harm to the pod.
    on.driver.fail("Publish", Status::internal("not now"));
    let before = on.publishes().len();
    until("one that fails", 300 * SECOND, || {
        on.publishes().len() > before + 1
    })
    .await;
    assert!(on.published("a", "pv").join(PUBLISHED).exists());
    assert_eq!(kubelet.phase("a"), "Running");
    assert_eq!(on.node.runtime.containers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_given_more_grows() {
    let on = Cluster::new();
    on.put_volume(json!({"capacity": {"storage": "2Gi"}}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    let last = on.driver.calls().pop().unwrap();
    let Call::Expand(request) = last else {
        panic!("{last:?}");
    };
    assert_eq!(request.capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(Path::new(&request.volume_path), on.published("a", "pv"));
    assert_eq!(
        Path::new(&request.staging_target_path),
        on.staging().join("globalmount")
    );
}

#[tokio::test(start_paused = true)]
async fn a_device_is_staged_published_and_given_back() {
    let on = Cluster::new();
    on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    let containers = json!({"containers": [{
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]
    }]});
    let pod = claimed_with("a", containers);
    kubelet.add(pod.clone()).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    let dir = on.path("plugins/kubernetes.io/csi/volumeDevices");
    let (stage, publish) = (on.stages().remove(0), on.publishes().remove(0));
    assert_eq!(
        Path::new(&stage.staging_target_path),
        dir.join("staging/pv")
    );
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    assert_eq!(Path::new(&publish.target_path), dir.join("publish/pv/a"));
    let capability = publish.volume_capability.unwrap();
    assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
    let link = on.path("pods/a/volumeDevices/kubernetes.io~csi/pv");
    assert_eq!(fs::read_link(&link).unwrap(), dir.join("publish/pv/a"));
    let container = &on.node.runtime.running("c")[0];
    let device = &container.config.devices[0];
    assert_eq!(device.container_path, "/dev/v");
    assert_eq!(Path::new(&device.host_path), link);
    kubelet.remove(pod).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 60 * SECOND, || {
        on.driver.verbs() == ["Stage", "Publish", "Unpublish", "Unstage"]
    })
    .await;
    until("the end of its directories", 10 * SECOND, || {
        !dir.join("pv").exists() && !dir.join("staging/pv").exists()
    })
    .await;
    assert!(!dir.join("publish/pv").exists());
}
