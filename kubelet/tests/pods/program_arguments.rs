//! Fields of volumes that external programs would parse as more than a value. Events name these
//! fields, and no container starts.

use std::{path::Path, sync::Arc};

use kubelet_api_client::events::EventRecorder;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use crate::{
    node::{IMAGE, Node, SECOND, pod, until},
    objects::MemoryObjects,
};

/// A node with sources for its volumes, and a disk without a device behind it.
struct Storage {
    node: Node,
    objects: Arc<MemoryObjects>,
}

impl Storage {
    fn new() -> Self {
        let objects = Arc::<MemoryObjects>::default();
        let mut node = Node::new();
        node.objects = Arc::clone(&objects) as _;
        let driver = json!({"metadata": {"name": "d.example"}, "spec": {"attachRequired": false}});
        objects.put("csidriver", driver);
        Self { node, objects }
    }

    fn disk(&self, name: &str) -> String {
        let path = self.node.dir.path().join(name);
        let device = makedev(7, 255);
        mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, device).unwrap();
        text(&path)
    }

    fn directory(&self, name: &str) -> String {
        let path = self.node.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        text(&path)
    }

    /// Creates a persistent volume and its claim, both called `name`; returns the claim as a
    /// volume.
    fn claim(&self, name: &str, mut spec: Value) -> Value {
        spec["capacity"] = json!({"storage": "1Gi"});
        spec["claimRef"] = json!({"name": name, "namespace": "default", "uid": name});
        let annotations = spec.as_object_mut().unwrap().remove("annotations");
        let metadata = json!({"name": name, "annotations": annotations});
        let volume = json!({"metadata": metadata, "spec": spec});
        self.objects.put("persistentvolume", volume);
        let claim = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"volumeName": name},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}
        });
        self.objects.put("persistentvolumeclaim", claim);
        json!({"persistentVolumeClaim": {"claimName": name}})
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn no_field_of_a_volume_is_an_option_of_a_program() {
    let mut on = Storage::new();
    let (recorder, mut queue) = EventRecorder::new("node");
    on.node.events = recorder;
    let (disk, odd_disk) = (on.disk("disk"), on.disk("disk -F"));
    let (plain, odd) = (on.directory("data"), on.directory("data -o"));
    let nfs = |server: &str, options: Value| json!({"nfs": {"server": server, "path": "/data"}, "mountOptions": options});
    let csi = |fs_type: &str| json!({"csi": {"driver": "d.example", "volumeHandle": "h", "fsType": fs_type}});
    let mut annotated = nfs("nfs.example", json!(["vers=4"]));
    annotated["annotations"] = json!({"volume.beta.kubernetes.io/mount-options": "-o,hard"});
    let volumes = [
        (
            json!({"local": {"path": disk, "fsType": "-T"}}),
            "local.fsType",
        ),
        (
            json!({"local": {"path": disk, "fsType": "../ext4"}}),
            "local.fsType",
        ),
        (
            json!({"local": {"path": disk, "fsType": "ext4,xfs"}}),
            "local.fsType",
        ),
        (json!({"local": {"path": odd_disk}}), "local.path"),
        (
            json!({"local": {"path": odd}, "mountOptions": ["noatime"]}),
            "local.path",
        ),
        (
            json!({"local": {"path": plain}, "mountOptions": ["noatime", "x=\"y"]}),
            "mountOptions[1]",
        ),
        (nfs("-T/tmp/fstab", json!([])), "nfs.server"),
        (nfs("nfs.example", json!(["vers=4\\"])), "mountOptions[0]"),
        (
            nfs("nfs.example", json!(["vers=4", "hard\nsuid"])),
            "mountOptions[1]",
        ),
        (nfs("nfs.example", json!(["-o", "hard"])), "mountOptions[0]"),
        (csi("-F"), "csi.fsType"),
        (
            annotated,
            "metadata.annotations[volume.beta.kubernetes.io/mount-options]",
        ),
        (csi("ext4 -F"), "csi.fsType"),
    ];
    let mut expected = Vec::new();
    let mut sources = Vec::new();
    for (index, (spec, field)) in volumes.into_iter().enumerate() {
        let name = format!("pv-{index}");
        sources.push(on.claim(&name, spec));
        let of_spec = if field.starts_with("metadata.") {
            ""
        } else {
            "spec."
        };
        expected.push(format!(
            "PersistentVolume {name}: {of_spec}{field}: Invalid value: "
        ));
    }
    for fs_type in ["-F", "ext4 -F"] {
        sources.push(json!({"csi": {"driver": "d.example", "fsType": fs_type}}));
        expected.push("spec.volumes[0].csi.fsType: Invalid value: ".to_owned());
    }

    let kubelet = on.node.start();
    for (index, mut source) in sources.into_iter().enumerate() {
        source["name"] = json!("v");
        let uid = format!("u{index}");
        let spec = json!({"volumes": [source], "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]
        }]});
        kubelet.add(pod(&uid, &uid, spec)).await;
    }
    let mut told = vec![String::new(); expected.len()];
    until("an event of each pod", 120 * SECOND, || {
        while let Ok(event) = queue.try_recv() {
            let name = event.involved_object.name.unwrap_or_default();
            let index = name.strip_prefix('u').and_then(|n| n.parse::<usize>().ok());
            if let (Some(index), Some("FailedMount")) = (index, event.reason.as_deref()) {
                told[index] = event.message.unwrap_or_default();
            }
        }
        told.iter().all(|message| !message.is_empty())
    })
    .await;
    for (message, expected) in told.iter().zip(expected) {
        assert!(
            message.contains(&expected),
            "{message:?} lacks {expected:?}"
        );
    }
    assert!(on.node.runtime.sandboxes().is_empty());
}
