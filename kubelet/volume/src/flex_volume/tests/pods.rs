//! Volumes that a driver mounts for each pod.

use std::os::unix::fs::{MetadataExt as _, symlink};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{VolumeManager, plugin::FsGroup};

#[tokio::test]
async fn a_driver_mounts_a_volume_and_unmounts_it() {
    let node = Node::new();
    let request = node.inline(json!({
        "fsType": "cifs", "readOnly": true, "options": {"share": "a b", "quote": "\"'"}
    }));
    assert_eq!(node.plugin.device(&request.spec).await.unwrap(), None);
    assert_eq!(node.plugin.attachment(&request.spec).await.unwrap(), None);
    let mounted = node.plugin.set_up(&request).await.unwrap();
    let dir = node.path("kubelet/pods/u/volumes/example.com~fake/v");
    assert_eq!(mounted, Mounted::Path(dir.clone()));
    assert!(dir.join("file").exists());
    let [init, mount] = &node.log()[..] else {
        panic!("two calls");
    };
    assert_eq!(init, "init");
    let prefix = format!("mount {} ", dir.display());
    assert!(mount.starts_with(&prefix), "{mount}");
    let expected = json!({
        "share": "a b", "quote": "\"'",
        "kubernetes.io/fsType": "cifs",
        "kubernetes.io/readwrite": "ro",
        "kubernetes.io/pvOrVolumeName": "v",
        "kubernetes.io/pod.name": "p",
        "kubernetes.io/pod.namespace": "shop",
        "kubernetes.io/pod.uid": "u",
        "kubernetes.io/serviceAccount.name": "seller",
    });
    assert_eq!(options(mount), expected);

    // Once is enough.
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(node.log(), Vec::<String>::new());
    node.plugin.tear_down(&request.volume).await.unwrap();
    assert_eq!(node.log(), [format!("unmount {}", dir.display())]);
    assert!(!dir.exists());
    node.plugin.tear_down(&request.volume).await.unwrap();
    assert_eq!(node.log(), Vec::<String>::new());
}

#[tokio::test]
async fn a_failure_names_the_driver_and_its_message() {
    let node = Node::new();
    node.on(
        "mount",
        r#"echo '{"status": "Failure", "message": "no such share"}' >&2; exit 1"#,
    );
    let request = node.inline(json!({}));
    assert_eq!(
        node.error(&request).await,
        r#"flexVolume driver "example.com/fake": mount: status "Failure": no such share"#
    );
    assert!(!request.dir.exists());
    node.on("mount", MOUNT);
    node.plugin.set_up(&request).await.unwrap();
    node.on(
        "unmount",
        r#"echo '{"status": "Failure", "message": "busy"}'"#,
    );
    let error = node.plugin.tear_down(&request.volume).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("unmount: status \"Failure\": busy"),
        "{error}"
    );
    assert!(request.dir.join("file").exists());
}

#[tokio::test]
async fn a_secret_of_the_drivers_type_is_passed_to_the_mount() {
    let data = json!({"user": "YQ==", "password": "Yg=="});
    let secret = json!({"secretRef": {"name": "key"}});
    let of_other = json!({"secretRef": {"name": "key", "namespace": "shop"}});
    let cluster = Cluster::with_secret(DRIVER, &data);
    let node = Node::with(r#"{"attach": false}"#, cluster);
    for mut request in [node.inline(secret.clone()), node.persistent(of_other)] {
        if request.spec.persistent().is_some() {
            let mut pod = (*request.pod).clone();
            pod.metadata.namespace = Some("other".to_owned());
            request.pod = Arc::new(pod);
        }
        node.plugin.set_up(&request).await.unwrap();
        let log = node.log();
        let options = options(log.last().unwrap());
        assert_eq!(options["kubernetes.io/secret/user"], "YQ==");
        assert_eq!(options["kubernetes.io/secret/password"], "Yg==");
    }

    let cluster = Cluster::with_secret("Opaque", &data);
    let node = Node::with(r#"{"attach": false}"#, cluster);
    assert_eq!(
        node.error(&node.inline(secret)).await,
        "volume v: flexVolume.secretRef: Invalid value: \"shop/key\": the type of the secret is \
         \"Opaque\", and must be \"example.com/fake\""
    );
    assert_eq!(node.calls(), ["init"]);
}

#[tokio::test]
async fn the_kubelet_changes_the_group_if_the_driver_lets_it() {
    for (capabilities, expected) in [
        (r#"{"attach": false}"#, 4321),
        (r#"{"attach": false, "fsGroup": false}"#, 0),
    ] {
        let node = Node::with(capabilities, Cluster::default());
        let mut request = node.inline(json!({}));
        request.fs_group = Some(FsGroup {
            gid: 4321,
            on_root_mismatch: false,
        });
        node.plugin.set_up(&request).await.unwrap();
        let log = node.log();
        let options = options(log.last().unwrap());
        assert_eq!(options["kubernetes.io/mounterArgs.FsGroup"], "4321");
        let group = |name: &str| fs::metadata(request.dir.join(name)).unwrap().gid();
        assert_eq!([group(""), group("file")], [expected; 2], "{capabilities}");

        // A kubelet that was killed before it had changed everything.
        std::os::unix::fs::chown(&request.dir, None, Some(0)).unwrap();
        std::os::unix::fs::chown(request.dir.join("file"), None, Some(0)).unwrap();
        node.plugin.set_up(&request).await.unwrap();
        assert_eq!([group(""), group("file")], [expected; 2], "{capabilities}");
    }
    let node = Node::new();
    let mut request = node.inline(json!({"readOnly": true}));
    request.fs_group = Some(FsGroup {
        gid: 4321,
        on_root_mismatch: false,
    });
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(fs::metadata(&request.dir).unwrap().gid(), 0);
}

#[tokio::test]
async fn capabilities_decide_on_labels_and_usage() {
    for (capabilities, relabel, usage) in [
        (r#"{"attach": false}"#, true, "None"),
        (
            r#"{"attach": false, "selinuxRelabel": false, "supportsMetrics": true}"#,
            false,
            "FileSystem",
        ),
    ] {
        let node = Node::with(capabilities, Cluster::default());
        let request = node.inline(json!({}));
        node.plugin.set_up(&request).await.unwrap();
        let attributes = Attributes {
            read_only: false,
            managed: true,
            selinux_relabel: relabel,
        };
        assert_eq!(node.plugin.attributes(&request.spec), attributes);
        let found = format!("{:?}", node.plugin.usage(&request));
        assert!(found.starts_with(usage), "{found}");
    }
}

#[tokio::test]
async fn a_driver_without_unmount_leaves_that_to_the_kubelet() {
    let node = Node::new();
    node.not_supported("unmount");
    let request = node.inline(json!({}));
    for calls in [&["init", "mount", "unmount"][..], &["mount"]] {
        node.plugin.set_up(&request).await.unwrap();
        node.plugin.tear_down(&request.volume).await.unwrap();
        assert!(!request.dir.exists());
        // What is not supported is not tried again.
        assert_eq!(node.calls(), calls);
    }
}

#[tokio::test]
async fn volumes_of_an_earlier_kubelet_are_found_by_their_directories() {
    let mut node = Node::new();
    let request = node.inline(json!({}));
    node.plugin.set_up(&request).await.unwrap();
    node.restart();
    let find = || {
        let pod_dir = node.path("kubelet/pods/u");
        crate::disk::volumes(&pod_dir, &request.volume.uid).unwrap()
    };
    let [volume] = &find()[..] else {
        panic!("one volume");
    };
    assert_eq!(*volume, request.volume);
    assert!(node.plugin.owns(&volume.plugin));
    assert_eq!(node.plugin.device_on_disk(volume).await.unwrap(), None);
    node.log();
    node.plugin.tear_down(volume).await.unwrap();
    assert_eq!(node.calls(), ["init", "unmount"]);
    assert!(!request.dir.exists());

    // The driver is removed while a pod has the volume.
    node.plugin.set_up(&request).await.unwrap();
    fs::remove_dir_all(node.driver_dir()).unwrap();
    node.restart();
    assert!(node.plugin.owns(DRIVER));
    node.log();
    node.plugin.tear_down(&request.volume).await.unwrap();
    assert_eq!(node.log(), Vec::<String>::new());
    assert!(!request.dir.exists());
}

#[tokio::test]
async fn the_manager_mounts_volumes_of_drivers_and_finds_them_after_a_restart() {
    let node = Node::new();
    let manager = || {
        let host = node.plugin.host.clone();
        let plugins = crate::plugins::all(&host, Arc::default(), &node.path("exec"));
        let manager = Arc::new(VolumeManager::new(host, plugins));
        let cancel = CancellationToken::new();
        let task = Arc::clone(&manager);
        let stop = cancel.clone();
        tokio::spawn(async move { task.run(stop).await });
        (manager, cancel.drop_guard())
    };
    let pod = json!({
        "metadata": {"name": "p", "namespace": "shop", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "flexVolume": {"driver": DRIVER}}]
        }
    });
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    let dir = node.path("kubelet/pods/u/volumes/example.com~fake/v");
    {
        let (manager, _guard) = manager();
        let mounted = manager.wait_for_attach_and_mount(&pod).await.unwrap();
        assert_eq!(mounted.path("v"), Some(&*dir));
        assert!(dir.join("file").exists());
    }
    // The pod is gone, and nothing but the directory names the driver.
    let (manager, _guard) = manager();
    manager.wait_for_unmount(&"u".into()).await.unwrap();
    assert!(!dir.exists());
    assert_eq!(node.calls(), ["init", "mount", "init", "unmount"]);
}

#[tokio::test]
async fn files_of_a_removed_driver_are_never_removed() {
    let node = Node::new();
    let request = node.inline(json!({}));
    fs::create_dir_all(&request.dir).unwrap();
    fs::write(request.dir.join("precious"), "x").unwrap();
    fs::remove_dir_all(node.driver_dir()).unwrap();
    node.plugin.tear_down(&request.volume).await.unwrap_err();
    assert!(request.dir.join("precious").exists());
}

#[tokio::test]
async fn a_missing_driver_is_an_error_with_its_path() {
    let node = Node::new();
    fs::remove_dir_all(node.driver_dir()).unwrap();
    let request = node.inline(json!({}));
    let path = node.driver_dir().join("fake");
    let expected = format!(
        "flexVolume driver \"example.com/fake\": {path:?} does not exist (volumePluginDir)"
    );
    let error = node.plugin.device(&request.spec).await.unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert_eq!(node.error(&request).await, expected);

    // No restart is needed.
    node.install();
    node.plugin.set_up(&request).await.unwrap();
    // A new version of the driver is asked for its capabilities.
    node.on(
        "init",
        r#"echo '{"status": "Success", "capabilities": {"attach": true}}'"#,
    );
    node.log();
    node.install();
    let device = node.plugin.device(&request.spec).await.unwrap();
    assert_eq!(device.unwrap(), "example.com/fake/mounts/v");
    assert_eq!(node.calls(), ["init"]);
}

#[tokio::test]
async fn names_of_built_in_plugins_are_drivers_only_if_installed() {
    let node = Node::new();
    for owned in ["lvm", "example.com/removed", NAME] {
        assert!(node.plugin.owns(owned), "{owned}");
    }
    for other in [
        "kubernetes.io/glusterfs",
        "kubernetes.io/lvm",
        "a/b~c",
        "..",
        "",
    ] {
        assert!(!node.plugin.owns(other), "{other}");
    }
    fs::create_dir_all(node.path("exec/kubernetes.io~lvm")).unwrap();
    assert!(node.plugin.owns("kubernetes.io/lvm"));
}

#[tokio::test]
async fn links_and_files_that_others_can_change_are_no_drivers() {
    let node = Node::new();
    let (dir, program) = (node.driver_dir(), node.driver_dir().join("fake"));
    let request = node.inline(json!({}));
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, mode, why) in [
        (&program, 0o757, "can be changed by all users"),
        (&dir, 0o777, "can be changed by all users"),
        (&program, 0o644, "is not executable"),
    ] {
        set(path, mode);
        let error = node.error(&request).await;
        assert!(error.ends_with(&format!("{path:?} {why}")), "{error}");
        set(path, 0o755);
    }
    for (path, why) in [(&program, "is not a file"), (&dir, "is not a directory")] {
        let moved = node.path("moved");
        fs::rename(path, &moved).unwrap();
        symlink(&moved, path).unwrap();
        let error = node.error(&request).await;
        assert!(error.ends_with(&format!("{path:?} {why}")), "{error}");
        fs::remove_file(path).unwrap();
        fs::rename(&moved, path).unwrap();
    }
    assert_eq!(node.log(), Vec::<String>::new());
    node.plugin.set_up(&request).await.unwrap();
}
