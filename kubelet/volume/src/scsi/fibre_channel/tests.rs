use std::{fs, os::unix::fs::symlink, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    plugin::{self, MountRequest, VolumePlugin as _},
    scsi::DiskPlugin,
    spec::{VolumeMode, VolumeSource},
};

fn spec(source: Value) -> VolumeSpec {
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"fc": source}});
    let volume = serde_json::from_value(volume).unwrap();
    VolumeSpec {
        name: "v".to_owned(),
        source: VolumeSource::Persistent(Arc::new(volume)),
        read_only: false,
        mode: VolumeMode::Block,
        capacity: None,
        migrated: false,
    }
}

#[test]
fn a_disk_is_named_as_upstream_names_it() {
    let unit = json!({"targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 2});
    let names = json!({"wwids": ["3600508b4 00105e21", "other"]});
    let single = json!({"wwids": ["3600508b400105e21"]});
    for (source, device, volume) in [
        (
            unit,
            "50060e801049cfd1-50060e801049cfd2-lun-2",
            "[50060e801049cfd1 50060e801049cfd2]:2",
        ),
        (
            names,
            "3600508b4_00105e21-other",
            "[3600508b4 00105e21 other]",
        ),
        (single, "3600508b400105e21", "[3600508b400105e21]"),
    ] {
        let source = FibreChannel::source(&spec(source), "").unwrap();
        assert_eq!(
            (source.device.as_str(), source.volume.as_str()),
            (device, volume)
        );
        assert_eq!(FcDisk::named(device), source.disk);
        // The name of a directory does not tell what were spaces.
        let found = volume.replace("b4 0", "b4_0");
        assert_eq!(FibreChannel::volume_of(device), Some(found));
    }
}

#[test]
fn what_could_lead_elsewhere_is_refused() {
    for (source, wanted) in [
        (json!({}), "fc.targetWWNs"),
        (json!({"targetWWNs": ["50"]}), "fc.targetWWNs"),
        (
            json!({"targetWWNs": ["50", "../x"], "lun": 0}),
            "fc.targetWWNs[1]",
        ),
        (json!({"targetWWNs": ["50"], "lun": 256}), "fc.lun"),
        (json!({"wwids": ["../x"]}), "fc.wwids[0]"),
        (json!({"wwids": [".."]}), "fc.wwids[0]"),
        (json!({"wwids": [""]}), "fc.wwids[0]"),
    ] {
        let source = FibreChannel::source(&spec(source), "").unwrap();
        let mut faults = Faults::default();
        FibreChannel::validate(&source.disk, &field::Path::new("fc"), &mut faults);
        let error = faults.into_result().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

/// A node that sees two paths to the logical unit 1 of a target.
struct Node {
    dir: tempfile::TempDir,
    plugin: DiskPlugin<FibreChannel>,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            sys: dir.path().join("sys"),
            dev: dir.path().join("dev"),
            ..Kernel::default()
        };
        fs::create_dir_all(kernel.sys.join("class/scsi_host/host3")).unwrap();
        fs::create_dir_all(kernel.dev.join("disk/by-path")).unwrap();
        fs::create_dir_all(kernel.dev.join("disk/by-id")).unwrap();
        let host = plugin::tests::host(&dir.path().join("kubelet"));
        let transport = FibreChannel {
            kernel,
            turn: Mutex::default(),
        };
        Self {
            plugin: DiskPlugin { host, transport },
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Shows a block device by a link.
    fn show(&self, device: &str, link: &str) {
        let path = self.path("dev").join(device);
        fs::write(&path, "").unwrap();
        symlink(path, self.path("dev/disk").join(link)).unwrap();
        let sysfs = self.path("sys/block").join(device).join("device");
        fs::create_dir_all(&sysfs).unwrap();
        fs::write(sysfs.join("delete"), "").unwrap();
    }

    fn is_deleted(&self, device: &str) -> bool {
        let file = self.path("sys/block").join(device).join("device/delete");
        fs::read_to_string(file).unwrap() == "1"
    }

    fn scanned(&self) -> Option<String> {
        let file = self.path("sys/class/scsi_host/host3/scan");
        let scanned = fs::read_to_string(&file).ok();
        let _ = fs::remove_file(file);
        scanned
    }

    fn request(&self, source: Value) -> MountRequest {
        let pod = Arc::default();
        let mut request = plugin::tests::request(pod, spec(source), FibreChannel::NAME);
        request.dir = self.plugin.host.volume_dir(&request.volume);
        request
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_is_there_as_long_as_a_pod_has_it() {
    let node = Node::new();
    let request = node.request(json!({"targetWWNs": ["50060e801049cfd1"], "lun": 1}));
    let error = node.plugin.stage(&request).await.unwrap_err();
    assert!(error.to_string().contains("no fc disk found"), "{error}");
    assert_eq!(node.scanned().as_deref(), Some("- - -"));

    node.show(
        "sda",
        "by-path/pci-0000:03:00.0-fc-0x50060e801049cfd1-lun-1",
    );
    node.show("sdb", "by-path/fc-0x50060e801049cfd1-lun-11");
    node.plugin.stage(&request).await.unwrap();
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(
        fs::canonicalize(&request.dir).unwrap(),
        node.path("dev/sda")
    );
    let device = node.plugin.device(&request.spec).await.unwrap().unwrap();
    assert_eq!(device, "volumeDevices/50060e801049cfd1-lun-1");
    let found = node.plugin.devices_on_disk().await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, device);
    let found = node.plugin.device_on_disk(&request.volume).await.unwrap();
    assert_eq!(found.unwrap().name, device);

    node.plugin.tear_down(&request.volume).await.unwrap();
    node.plugin.unstage(&device).await.unwrap();
    assert!(node.is_deleted("sda") && !node.is_deleted("sdb"));
    assert_eq!(node.plugin.devices_on_disk().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_never_used_stays() {
    let node = Node::new();
    node.show("sda", "by-id/scsi-3600508b400105e21");
    let mut request = node.request(json!({"wwids": ["3600508b400105e21"], "fsType": "none"}));
    request.spec.mode = VolumeMode::Filesystem;
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    assert!(error.contains("mkfs.none"), "{error}");
    let device = node.plugin.device(&request.spec).await.unwrap().unwrap();
    node.plugin.unstage(&device).await.unwrap();
    assert!(!node.is_deleted("sda"));
    assert_eq!(node.plugin.devices_on_disk().await.unwrap(), []);

    // Two directories of the same disk: the first one to go leaves the disk to the other.
    let block = node.request(json!({"wwids": ["3600508b400105e21"]}));
    node.plugin.stage(&block).await.unwrap();
    let _ = node.plugin.stage(&request).await.unwrap_err();
    node.plugin.unstage(&device).await.unwrap();
    assert!(!node.is_deleted("sda"));
    let device = node.plugin.device(&block.spec).await.unwrap().unwrap();
    node.plugin.unstage(&device).await.unwrap();
    assert!(node.is_deleted("sda"));
}

#[tokio::test]
async fn no_name_of_a_disk_leads_elsewhere() {
    let node = Node::new();
    let root = node.plugin.host.plugin_dir(FibreChannel::NAME);
    let elsewhere = node.path("elsewhere");
    for dir in [&elsewhere, &root.join("other")] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("data"), "").unwrap();
    }
    let path = elsewhere.to_str().unwrap();
    for name in [
        "",
        ".",
        "..",
        "volumeDevices",
        "a/../..",
        path,
        "../../elsewhere",
    ] {
        let spec = spec(json!({"wwids": [name]}));
        node.plugin.device(&spec).await.unwrap_err();
        node.plugin.unstage(name).await.unwrap_err();
        node.plugin
            .unstage(&format!("volumeDevices/{name}"))
            .await
            .unwrap_err();
    }
    assert!(elsewhere.join("data").exists() && root.join("other/data").exists());
}

#[tokio::test(start_paused = true)]
async fn a_disk_may_have_names_of_its_own() {
    let node = Node::new();
    node.show("sdc", "by-id/scsi-3600508b4_0010-5e21");
    let request = node.request(json!({"wwids": ["3600508b4 0010-5e21"]}));
    node.plugin.stage(&request).await.unwrap();
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(
        fs::canonicalize(&request.dir).unwrap(),
        node.path("dev/sdc")
    );
    // A multipath device is used if there is one, without looking for further paths.
    node.scanned();
    fs::create_dir_all(node.path("sys/block/dm-1/slaves")).unwrap();
    fs::write(node.path("sys/block/dm-1/slaves/sdc"), "").unwrap();
    fs::create_dir_all(node.path("sys/block/dm-1/dm")).unwrap();
    fs::write(node.path("sys/block/dm-1/dm/uuid"), "mpath-1").unwrap();
    fs::write(node.path("dev/dm-1"), "").unwrap();
    node.plugin.stage(&request).await.unwrap();
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(
        fs::canonicalize(&request.dir).unwrap(),
        node.path("dev/dm-1")
    );
    assert_eq!(node.scanned(), None);

    fs::remove_dir_all(node.path("sys/block/dm-1")).unwrap();
    let device = node.plugin.device(&request.spec).await.unwrap().unwrap();
    node.plugin.tear_down(&request.volume).await.unwrap();
    node.plugin.unstage(&device).await.unwrap();
    assert!(node.is_deleted("sdc"));
}
