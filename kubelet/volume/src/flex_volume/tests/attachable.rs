//! Volumes that the controller attaches, and that are mounted once for all of their pods.

use kubelet_pod_spec::identity::PodUid;

use super::*;

const UNIQUE: &str = "example.com/fake/pv";

fn device(node: &Node) -> PathBuf {
    node.path("kubelet/plugins/kubernetes.io/flexvolume/example.com/fake/mounts/pv")
}

/// A node with a driver that attaches, and a volume on it.
async fn attachable() -> (Node, MountRequest) {
    let node = Node::with(r#"{"attach": true}"#, Cluster::default());
    node.on("mountdevice", MOUNT);
    node.on("unmountdevice", UNMOUNT);
    node.not_supported("mount");
    node.not_supported("unmount");
    let mut request = node.persistent(json!({"options": {"lun": "7"}}));
    request.attachment = node.plugin.attachment(&request.spec).await.unwrap();
    assert_eq!(request.attachment.as_deref(), Some(UNIQUE));
    (node, request)
}

#[tokio::test]
async fn an_attached_volume_is_mounted_once_and_bound_for_each_pod() {
    let (node, first) = attachable().await;
    let name = node.plugin.device(&first.spec).await.unwrap().unwrap();
    assert_eq!(name, "example.com/fake/mounts/pv");
    node.on(
        "waitforattach",
        r#"echo "{\"status\": \"Success\", \"device\": \"$2-1\"}""#,
    );
    let error = node.plugin.stage(&first).await.unwrap_err();
    assert!(matches!(error, VolumeError::NotAttached { .. }), "{error}");
    assert_eq!(node.calls(), ["init"]);

    node.cluster.attach(UNIQUE, "/dev/fake");
    node.plugin.stage(&first).await.unwrap();
    let log = node.log();
    let dir = device(&node);
    assert!(log[0].starts_with("waitforattach /dev/fake {"), "{log:?}");
    let mount = format!("mountdevice {} /dev/fake-1 {{", dir.display());
    assert!(log[1].starts_with(&mount), "{log:?}");
    let expected = json!({
        "lun": "7",
        "kubernetes.io/fsType": "",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "pv",
    });
    assert_eq!(
        [options(&log[0]), options(&log[1])],
        [expected.clone(), expected]
    );

    let mut second = first.clone();
    second.volume.uid = PodUid::from("u2");
    second.dir = node.plugin.host.volume_dir(&second.volume);
    second.spec.read_only = true;
    for request in [&first, &second] {
        node.plugin.stage(request).await.unwrap();
        node.plugin.set_up(request).await.unwrap();
        assert!(request.dir.join("file").exists());
    }
    fs::write(first.dir.join("written"), "").unwrap();
    fs::write(second.dir.join("refused"), "").unwrap_err();
    assert_eq!(node.calls(), ["mount"]);
    for request in [&first, &second] {
        node.plugin.tear_down(&request.volume).await.unwrap();
        assert!(!request.dir.exists());
    }
    assert!(dir.join("written").exists());
    assert_eq!(node.calls(), ["unmount"]);
    node.plugin.unstage(&name).await.unwrap();
    assert_eq!(node.log(), [format!("unmountdevice {}", dir.display())]);
    assert!(!dir.exists());
    node.plugin.unstage(&name).await.unwrap();
    assert_eq!(node.log(), Vec::<String>::new());
}

#[tokio::test]
async fn a_device_that_is_mounted_elsewhere_stays() {
    let (node, request) = attachable().await;
    node.cluster.attach(UNIQUE, "/dev/fake");
    node.plugin.stage(&request).await.unwrap();
    let elsewhere = node.path("backup");
    fs::create_dir(&elsewhere).unwrap();
    rustix::mount::mount_bind(device(&node), &elsewhere).unwrap();
    let unstaged = node.plugin.unstage("example.com/fake/mounts/pv").await;
    rustix::mount::unmount(&elsewhere, rustix::mount::UnmountFlags::empty()).unwrap();
    let error = unstaged.unwrap_err().to_string();
    assert!(error.contains("it is still mounted at"), "{error}");
    assert!(!node.calls().contains(&"unmountdevice".to_owned()));
    node.plugin
        .unstage("example.com/fake/mounts/pv")
        .await
        .unwrap();
    assert_eq!(node.calls(), ["unmountdevice"]);
}

#[tokio::test]
async fn a_restarted_kubelet_finds_devices_and_unmounts_them() {
    let (mut node, request) = attachable().await;
    node.cluster.attach(UNIQUE, "/dev/fake");
    node.plugin.stage(&request).await.unwrap();
    node.plugin.set_up(&request).await.unwrap();
    for is_removed in [false, true] {
        if is_removed {
            fs::remove_dir_all(node.driver_dir()).unwrap();
        }
        node.restart();
        let found = FoundDevice {
            name: "example.com/fake/mounts/pv".to_owned(),
            attachment: Some(UNIQUE.to_owned()),
        };
        assert_eq!(
            node.plugin.devices_on_disk().await.unwrap(),
            std::slice::from_ref(&found)
        );
        let of_volume = node.plugin.device_on_disk(&request.volume).await.unwrap();
        assert_eq!(of_volume, Some(found.clone()));
        node.plugin.tear_down(&request.volume).await.unwrap();
        node.plugin.unstage(&found.name).await.unwrap();
        assert!(!request.dir.exists() && !device(&node).exists());
        assert_eq!(node.plugin.devices_on_disk().await.unwrap(), []);
        if !is_removed {
            node.plugin.stage(&request).await.unwrap();
            node.plugin.set_up(&request).await.unwrap();
        }
    }
}

#[tokio::test]
async fn without_mountdevice_the_kubelet_mounts_the_disk() {
    let (node, mut request) = attachable().await;
    node.not_supported("mountdevice");
    node.not_supported("unmountdevice");
    node.cluster.attach(UNIQUE, "-o");
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    assert!(
        error.contains("its device \"-o\" must be an absolute path"),
        "{error}"
    );
    // Formatting and mounting is what other disks have, too.
    let missing = node.path("missing");
    node.cluster.attach(UNIQUE, missing.to_str().unwrap());
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("cannot open {missing:?}")),
        "{error}"
    );
    let hostile = json!({"driver": DRIVER, "fsType": "../x"});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"flexVolume": hostile}});
    let volume = serde_json::from_value(volume).unwrap();
    request.spec.source = VolumeSource::Persistent(Arc::new(volume));
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    let field = "PersistentVolume pv: spec.flexVolume.fsType: Invalid value: \"../x\"";
    assert!(error.starts_with(field), "{error}");

    // Neither the driver nor the kubelet has mounted anything.
    node.cluster.attach(UNIQUE, "");
    node.plugin.stage(&request).await.unwrap();
    let error = node.error(&request).await;
    let why = format!(
        "mount: Not supported, and nothing is mounted at {:?}",
        device(&node)
    );
    assert!(error.ends_with(&why), "{error}");
    assert!(!request.dir.exists());
}

#[tokio::test]
async fn a_driver_expands_the_file_system() {
    let (node, mut request) = attachable().await;
    node.cluster.attach(UNIQUE, "/dev/fake");
    node.on("expandfs", SUCCESS);
    request.spec.capacity = Some(Capacity {
        bytes: 3000,
        known: 1000,
    });
    assert!(node.plugin.expands(&request.spec));
    node.log();
    let grown = node.plugin.expand(&request, 3000).await.unwrap();
    assert!(matches!(grown, Growth::Done), "{grown:?}");
    let log = node.log();
    let expanded = log.last().unwrap();
    let rest = format!("}} /dev/fake {} 3000 1000", request.dir.display());
    assert!(
        expanded.starts_with("expandfs {") && expanded.ends_with(&rest),
        "{expanded}"
    );

    node.on(
        "expandfs",
        r#"echo '{"status": "Failure", "message": "full"}'"#,
    );
    let error = node.plugin.expand(&request, 3000).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("expandfs: status \"Failure\": full"),
        "{error}"
    );
    // By default, the kubelet expands it.
    node.not_supported("expandfs");
    let error = node.plugin.expand(&request, 3000).await.unwrap_err();
    let why = "cannot grow \"/dev/fake\": resize of format  is not supported";
    assert_eq!(error.to_string(), why);

    let node = Node::with(r#"{"requiresFSResize": false}"#, Cluster::default());
    let request = node.persistent(json!({}));
    let grown = node.plugin.expand(&request, 3000).await.unwrap();
    assert!(matches!(grown, Growth::Needless), "{grown:?}");
    assert!(!node.plugin.expands(&request.spec));
    assert_eq!(node.calls(), ["init"]);
}

#[tokio::test]
async fn no_name_of_a_device_leads_elsewhere() {
    let (node, _) = attachable().await;
    for name in [
        "",
        "pv",
        "mounts/pv",
        "example.com/fake/pv",
        "example.com/fake/mounts/",
        "example.com/fake/mounts/..",
        "../../../exec/mounts/x",
        "a/../b/mounts/x",
    ] {
        let error = node.plugin.unstage(name).await.unwrap_err().to_string();
        assert!(error.contains("is no device of"), "{error}");
    }
}

#[tokio::test]
async fn volumes_as_devices_are_of_another_kind() {
    let (node, mut request) = attachable().await;
    assert!(node.plugin.supports(&request.spec));
    request.spec.mode = VolumeMode::Block;
    assert!(!node.plugin.supports(&request.spec));
}
