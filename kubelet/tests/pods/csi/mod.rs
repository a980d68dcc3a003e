//! CSI volumes: the calls to drivers and the volumes in pods.

mod access;
mod faults;
mod forgotten;
mod growth;
mod life;
mod migrated;
mod requests;
mod selinux;
mod usage;

use std::{path::PathBuf, sync::Arc};

use cri_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use fake_csi::{Call, FakeCsi, Serving};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

const DRIVER: &str = "d.example.com";
/// The driver parses them.
const MOUNT_OPTIONS: [&str; 2] = ["noatime,nodev", "-o allow_other"];
/// printf handle-1 | sha256sum
const HASH: &str = "4219dcd75aa1fff692ddc5cf84c1b34bf799aaad291afdf03dde2213f2f3b397";

struct Cluster {
    node: Node,
    objects: Arc<MemoryObjects>,
    driver: FakeCsi,
}

impl Cluster {
    /// A cluster with a claim `data` bound to the volume `pv`, whose driver needs no attachment.
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

    /// Creates the volume, with `more` merged into its spec, and its claim with the capacity
    /// `known`.
    fn put_volume(&self, more: Value, known: &str) {
        let mut volume = json!({
            "metadata": {"name": "pv"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "default", "name": "data", "uid": "uid-of-data"},
                "mountOptions": MOUNT_OPTIONS,
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

    /// The staging directory that the pods of `pv` share.
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

/// A pod with the claim; its name is also its UID.
fn claimed_with(name: &str, more: Value) -> Pod {
    let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
    pod(name, name, with(claim, more))
}

/// A pod with the claim as a block device; its name is also its UID.
fn claimed_device(name: &str) -> Pod {
    let containers = json!({"containers": [{
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]
    }]});
    claimed_with(name, containers)
}

async fn gone(kubelet: &Running, on: &Cluster, uid: &str) {
    let dir = on.path("pods").join(uid);
    until("the pod's end", 300 * SECOND, || !dir.exists()).await;
    assert_eq!(kubelet.status(uid).phase, None);
}
