//! SELinux labels of volumes.

use std::{fs, path::Path};

use cri_proto::csi::v1::{VolumeCapability, volume_capability::AccessType};
use kubelet_api_client::events::EventRecorder;
use kubelet_host::selinux::SeLinux;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Cluster, MOUNT_OPTIONS, access::has_event, claimed_with, gone};
use crate::node::{Running, SECOND};

const LABEL: &str = "system_u:object_r:container_file_t";

/// A cluster with a volume for a single pod, whose driver supports mounts with SELinux contexts.
fn cluster() -> Cluster {
    let on = Cluster::new();
    on.put_driver(json!({"attachRequired": false, "seLinuxMount": true}));
    on.put_volume(json!({"accessModes": ["ReadWriteOncePod"]}), "1Gi");
    on
}

/// Starts a kubelet on a node with SELinux; the file systems at `unlabelled` have no labels.
fn start(on: &Cluster, unlabelled: &[&Path]) -> Running {
    let root = on.node.dir.path().join("root");
    let mut mounts = "22 1 8:1 / / rw - xfs /dev/a rw,seclabel\n\
        23 1 0:5 / /sys/fs/selinux rw - selinuxfs selinuxfs rw\n"
        .to_owned();
    for path in unlabelled {
        let line = format!("24 1 8:2 / {} rw - ext4 /dev/b rw\n", path.display());
        mounts.push_str(&line);
    }
    let contexts = format!("file = \"{LABEL}:s0\"\n");
    for (path, text) in [
        ("proc/self/mountinfo", mounts),
        ("usr/share/containers/selinux/contexts", contexts),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut options = on.node.options();
    options.node.selinux = SeLinux::of(&root);
    on.node.start_with(options)
}

fn of_level(level: &str) -> Value {
    json!({"securityContext": {"seLinuxOptions": {"level": level}}})
}

fn flags(capability: Option<VolumeCapability>) -> Vec<String> {
    match capability.unwrap().access_type.unwrap() {
        AccessType::Mount(mount) => mount.mount_flags,
        AccessType::Block(_) => Vec::new(),
    }
}

/// The mounts of the pod's last container that the runtime must relabel.
fn relabelled(on: &Cluster) -> Vec<String> {
    let containers = on.node.runtime.containers();
    let newest = containers.into_iter().max_by_key(|c| c.created_at).unwrap();
    let mounts = newest.config.mounts.into_iter();
    let relabelled = mounts.filter(|mount| mount.selinux_relabel);
    relabelled.map(|mount| mount.container_path).collect()
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_one_pod_is_mounted_with_its_label_and_then_with_the_next_ones() {
    let on = cluster();
    let _driver = on.serve();
    let kubelet = start(&on, &[&on.published("a", "pv"), &on.published("b", "pv")]);
    let [a, b] = [("a", "s0:c1,c2"), ("b", "s0:c3")];
    let [a, b] = [a, b].map(|(name, level)| claimed_with(name, of_level(level)));
    kubelet.add(a.clone()).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    assert!(!relabelled(&on).contains(&"/v".to_owned()));
    kubelet.add(b).await;
    sleep(10 * SECOND).await;
    kubelet.remove(a).await;
    kubelet.until_phase("b", "Running", 300 * SECOND).await;
    let verbs = [
        "Stage",
        "Publish",
        "Unpublish",
        "Unstage",
        "Stage",
        "Publish",
    ];
    assert_eq!(on.driver.verbs(), verbs);
    for (index, level) in ["s0:c1,c2", "s0:c3"].into_iter().enumerate() {
        let [first, second] = MOUNT_OPTIONS.map(str::to_owned);
        let expected = [first, second, format!("context=\"{LABEL}:{level}\"")];
        let [stage, publish] = [
            on.stages()[index].volume_capability.clone(),
            on.publishes()[index].volume_capability.clone(),
        ];
        assert_eq!(flags(stage), expected);
        assert_eq!(flags(publish), expected);
    }
    // The format is upstream's; the file is read after a restart.
    let data = fs::read_to_string(on.staging().join("vol_data.json")).unwrap();
    let data: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(data["seLinuxMountContext"], format!("{LABEL}:s0:c3"));
    kubelet.stop().await;

    // The next kubelet reads the mount's context from the file.
    let kubelet = start(&on, &[]);
    kubelet.add(claimed_with("b", of_level("s0:c3"))).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    assert_eq!(on.driver.verbs(), verbs);
    kubelet.remove(claimed_with("b", of_level("s0:c3"))).await;
    gone(&kubelet, &on, "b").await;
    kubelet.stop().await;
    assert_eq!(on.driver.wrongs(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_runtime_relabels_what_has_labels() {
    for (spec, mode, unlabelled, expected) in [
        (json!({"seLinuxMount": true}), "ReadWriteOnce", false, true),
        (json!({"seLinuxMount": true}), "ReadWriteOnce", true, false),
        (json!({}), "ReadWriteOncePod", false, true),
    ] {
        let on = cluster();
        let mut driver = spec;
        driver["attachRequired"] = json!(false);
        on.put_driver(driver);
        on.put_volume(json!({"accessModes": [mode]}), "1Gi");
        let _driver = on.serve();
        let published = on.published("a", "pv");
        let below: &[&Path] = if unlabelled { &[&published] } else { &[] };
        let kubelet = start(&on, below);
        kubelet.add(claimed_with("a", of_level("s0:c1,c2"))).await;
        kubelet.until_phase("a", "Running", 60 * SECOND).await;
        assert_eq!(
            flags(on.stages()[0].volume_capability.clone()),
            MOUNT_OPTIONS
        );
        let found = relabelled(&on);
        assert_eq!(found.contains(&"/v".to_owned()), expected, "{found:?}");
        // The kubelet's own files are relabelled too.
        assert!(found.contains(&"/etc/hosts".to_owned()), "{found:?}");
        kubelet.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_without_selinux_has_nothing_relabelled() {
    let on = cluster();
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed_with("a", of_level("s0:c1,c2"))).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    assert_eq!(
        flags(on.stages()[0].volume_capability.clone()),
        MOUNT_OPTIONS
    );
    assert_eq!(relabelled(&on), [""; 0]);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_label_with_options_of_its_own_is_refused() {
    let mut on = cluster();
    let (recorder, mut events) = EventRecorder::new("node");
    on.node.events = recorder;
    let _driver = on.serve();
    let kubelet = start(&on, &[]);
    kubelet
        .add(claimed_with("a", of_level("s0\",suid,x=\"")))
        .await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), [""; 0]);
    let why = "spec.securityContext.seLinuxOptions.level: Invalid value";
    assert!(has_event(&mut events, "FailedMount", why));
    kubelet.stop().await;
}
