//! The requests to drivers, by kind of volume and by the drivers' capabilities.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use cri_proto::csi::v1::{
    node_service_capability::rpc::Type as Capability, volume_capability::AccessType,
};
use fake_csi::{Call, PUBLISHED};
use kubelet_api_client::events::EventRecorder;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use super::{Cluster, DRIVER, claimed, claimed_device, claimed_with, gone, with};
use crate::node::{SECOND, pod, until};

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
    let secret = |data: &str| json!({"metadata": {"namespace": "default", "name": "key"}, "data": {"user": data}});
    // A driver gets text, and nothing else than the secret.
    on.objects.put("secret", secret("/w=="));
    sleep(150 * SECOND).await;
    assert_eq!(on.driver.verbs(), [""; 0]);
    on.objects.put("secret", secret("bWU="));
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

/// The name of the attachment of the volume to the node.
///
/// printf handle-1d.example.comnode | sha256sum
const ATTACHMENT: &str = "csi-8dacb94c639d43bfcc0fe899bab694270688cf06886ffc2da50cbc124b5bcb11";

#[tokio::test(start_paused = true)]
async fn a_pod_fails_where_its_volume_has_no_place() {
    let mut on = Cluster::new();
    let (recorder, mut events) = EventRecorder::new("node");
    on.node.events = recorder;
    let _driver = on.serve();
    on.objects
        .put("node", json!({"metadata": {"name": "node"}}));
    let refuse = |code: Value| {
        let error = json!({"errorCode": code, "message": "too many volumes"});
        let attachment = json!({
            "metadata": {"name": ATTACHMENT},
            "spec": {
                "attacher": DRIVER, "nodeName": "node",
                "source": {"persistentVolumeName": "pv"}
            },
            "status": {"attached": false, "attachError": error}
        });
        on.objects.put("volumeattachment", attachment);
    };
    // Other errors may go away, and not every driver reports this one.
    on.put_driver(json!({}));
    refuse(json!(8));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(200 * SECOND).await;
    on.put_driver(json!({"nodeAllocatableUpdatePeriodSeconds": 60}));
    for code in [Value::Null, json!(13)] {
        refuse(code);
        sleep(300 * SECOND).await;
    }
    assert_eq!(kubelet.phase("a"), "Pending");
    refuse(json!(8));
    kubelet.until_phase("a", "Failed", 400 * SECOND).await;
    let status = kubelet.status("a");
    let reason = "VolumeAttachmentLimitExceeded";
    assert_eq!(status.reason.as_deref(), Some(reason));
    let start = "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. \
                 unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: \
                 context deadline exceeded";
    let message = status.message.unwrap();
    assert!(message.starts_with(start), "{message}");
    let told = std::iter::from_fn(|| events.try_recv().ok());
    let told = told.filter(|event| event.reason.as_deref() == Some(reason));
    assert_eq!(told.count(), 1);
    assert_eq!(on.driver.verbs(), [""; 0]);
    let dir = on.path("pods/a");
    until("the end of its directory", 300 * SECOND, || {
        !dir.join("volumes").exists()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_must_be_attached_is_waited_for() {
    let on = Cluster::new();
    on.put_driver(json!({}));
    let _driver = on.serve();
    let volume = "kubernetes.io/csi/d.example.com^handle-1";
    let put_node = |in_use: &[&str], attached: &[&str]| {
        let attached: Vec<Value> = attached
            .iter()
            .map(|name| json!({"name": name, "devicePath": ""}))
            .collect();
        let status = json!({"volumesInUse": in_use, "volumesAttached": attached});
        let node = json!({"metadata": {"name": "node"}, "status": status});
        on.objects.put("node", node);
    };
    put_node(&[], &[volume]);
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(10 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), [""; 0]);
    // This tells the controller not to detach the volume.
    let in_use = Some(vec![volume.to_owned()]);
    assert_eq!(kubelet.kubelet.volumes_in_use(), in_use);
    let attachment = |attached: bool| {
        json!({
            "metadata": {"name": ATTACHMENT},
            "spec": {
                "attacher": DRIVER, "nodeName": "node",
                "source": {"persistentVolumeName": "pv"}
            },
            "status": {"attached": attached, "attachmentMetadata": {"device": "sdx"}}
        })
    };
    for (reported, attached, bound) in [
        (&[][..], &[volume][..], true),
        (&[volume], &[], true),
        (&[volume], &[volume], false),
    ] {
        put_node(reported, attached);
        on.objects.put("volumeattachment", attachment(bound));
        sleep(130 * SECOND).await;
        assert_eq!(on.driver.verbs(), [""; 0]);
    }
    on.objects.put("volumeattachment", attachment(true));
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    assert_eq!(on.stages()[0].publish_context["device"], "sdx");
    assert_eq!(on.publishes()[0].publish_context["device"], "sdx");
    kubelet.stop().await;

    // The next kubelet reports it as in use before it receives the pod.
    let kubelet = on.node.start();
    until("what is on disk", 60 * SECOND, || {
        kubelet.kubelet.volumes_in_use() == in_use
    })
    .await;
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    assert_eq!(kubelet.kubelet.volumes_in_use(), in_use);
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 60 * SECOND, || {
        kubelet.kubelet.volumes_in_use() == Some(Vec::new())
    })
    .await;
    assert_eq!(on.driver.verbs().last(), Some(&"Unstage"));
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
    for (mode, pod) in [("Filesystem", claimed("a")), ("Block", claimed_device("a"))] {
        let on = Cluster::new();
        on.put_driver(json!({"attachRequired": false, "requiresRepublish": true}));
        on.put_volume(json!({"volumeMode": mode}), "1Gi");
        let _driver = on.serve();
        let kubelet = on.node.start();
        kubelet.add(pod).await;
        kubelet.until_phase("a", "Running", 60 * SECOND).await;
        until("more publishes", 300 * SECOND, || on.publishes().len() > 2).await;
        assert_eq!(on.stages().len(), 1);
        // A failed call does not affect the pod.
        on.driver.fail("Publish", Status::internal("not now"));
        let before = on.publishes().len();
        until("one that fails", 300 * SECOND, || {
            on.publishes().len() > before + 1
        })
        .await;
        let published = match mode {
            "Block" => on.path("plugins/kubernetes.io/csi/volumeDevices/publish/pv/a"),
            _ => on.published("a", "pv").join(PUBLISHED),
        };
        assert!(published.exists());
        assert_eq!(kubelet.phase("a"), "Running");
        assert_eq!(on.node.runtime.containers().len(), 1);
    }
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
async fn a_volume_that_is_only_read_does_not_grow() {
    let mut on = Cluster::new();
    let (recorder, mut events) = EventRecorder::new("node");
    on.node.events = recorder;
    on.put_volume(json!({"capacity": {"storage": "2Gi"}}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    let claim = json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": true}});
    kubelet.add(pod("a", "a", with(claim, json!({})))).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    assert!(on.publishes()[0].readonly);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        if event.reason.as_deref() == Some("FileSystemResizeFailed") {
            told.push((event.involved_object.kind.unwrap(), event.message.unwrap()));
        }
    }
    let message = "MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file \
                   system";
    let expected =
        ["Pod", "PersistentVolumeClaim"].map(|kind| (kind.to_owned(), message.to_owned()));
    assert_eq!(told, expected);

    // The kubelet reads the claim once more when the volume has grown elsewhere, not with each sync.
    let reads = async || {
        let before = on.objects.claim_reads();
        sleep(900 * SECOND).await;
        on.objects.claim_reads() - before
    };
    let usual = reads().await;
    on.put_volume(json!({"capacity": {"storage": "3Gi"}}), "3Gi");
    let after = reads().await;
    assert!(after <= usual + 3, "{after} instead of {usual}");
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
}

/// How many times this process has the device of a node open.
fn times_open(node: &Path) -> usize {
    let device = fs::metadata(node).unwrap().rdev();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_it = |entry: &fs::DirEntry| {
        let found = fs::metadata(entry.path());
        found.is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == device)
    };
    open.filter(is_it).count()
}

#[tokio::test(start_paused = true)]
async fn a_device_is_staged_published_and_given_back() {
    let on = Cluster::new();
    on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    let pod = claimed_device("a");
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
    // Otherwise its number could come to mean another disk.
    let published = dir.join("publish/pv/a");
    assert_eq!(times_open(&published), 1);
    kubelet.stop().await;
    assert_eq!(times_open(&published), 0);
    let kubelet = on.node.start();
    kubelet.add(pod.clone()).await;
    until("the device is open", 60 * SECOND, || {
        times_open(&published) == 1
    })
    .await;
    on.driver.fail("Unpublish", Status::unavailable("wait"));
    kubelet.remove(pod).await;
    until("an unpublishing", 60 * SECOND, || {
        on.driver.verbs().last() == Some(&"Unpublish")
    })
    .await;
    assert_eq!(times_open(&published), 0);
    on.driver.clear_faults();
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 60 * SECOND, || {
        on.driver.verbs().last() == Some(&"Unstage")
    })
    .await;
    assert_eq!(on.driver.verbs()[..3], ["Stage", "Publish", "Unpublish"]);
    until("the end of its directories", 10 * SECOND, || {
        !dir.join("pv").exists() && !dir.join("staging/pv").exists()
    })
    .await;
    assert!(!dir.join("publish/pv").exists());
}
