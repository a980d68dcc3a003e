//! Volumes of pods: their contents and their removal. These tests mount file systems below the
//! test's own directory.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use cri_proto::runtime::v1::Mount;
use fake_runtime::Verb;
use kubelet_api_client::events::EventRecorder;
use kubelet_host::mount_info;
use serde_json::{Value, json};

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

/// A node whose mounts are removed when the test ends, even after a panic.
struct Mounting {
    node: Node,
    objects: Arc<MemoryObjects>,
}

impl Mounting {
    fn new() -> Self {
        let objects = Arc::<MemoryObjects>::default();
        let mut node = Node::new();
        node.objects = Arc::clone(&objects) as _;
        Self { node, objects }
    }

    fn dir(&self) -> &Path {
        self.node.dir.path()
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.dir().join("kubelet/pods").join(uid)
    }

    /// The mount points, and the IDs of the mounts.
    fn mounts(&self) -> Vec<(PathBuf, u64)> {
        let mounts = mount_info::within(self.dir()).unwrap().into_iter();
        mounts.map(|mount| (mount.mount_point, mount.id)).collect()
    }

    fn put(&self, resource: &str, name: &str, data: Value) {
        let object = json!({
            "metadata": {"namespace": "default", "name": name}, "data": data
        });
        self.objects.put(resource, object);
    }

    /// The mount of the newest container `c` at a path.
    fn mount(&self, path: &str) -> Mount {
        let container = self.node.runtime.running("c").pop().unwrap();
        let mut mounts = container.config.mounts.into_iter();
        mounts.find(|mount| mount.container_path == path).unwrap()
    }

    /// The content of a file as container `c` sees it.
    fn read(&self, path: &str, file: &str) -> Option<String> {
        fs::read_to_string(Path::new(&self.mount(path).host_path).join(file)).ok()
    }
}

impl Drop for Mounting {
    fn drop(&mut self) {
        for (path, _) in self.mounts() {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A pod that mounts one volume at `/v`.
fn with_volume(source: Value) -> Value {
    with(source, json!({"mountPath": "/v"}), json!({}))
}

fn with(source: Value, mut mount: Value, mut more: Value) -> Value {
    let mut volume = source;
    volume["name"] = json!("v");
    mount["name"] = json!("v");
    more["volumes"] = json!([volume]);
    more["containers"] = json!([{
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "NAME", "value": "one"}], "volumeMounts": [mount]
    }]);
    more
}

async fn gone(kubelet: &Running, on: &Mounting, uid: &str) {
    let dir = on.pod_dir(uid);
    until("the pod's end", 60 * SECOND, || {
        !dir.exists() && kubelet.kubelet.pods().is_empty()
    })
    .await;
    assert_eq!(on.mounts(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_secret() {
    let on = Mounting::new();
    let kubelet = on.node.start();
    let spec = with(
        json!({"secret": {"secretName": "key", "defaultMode": 0o440}}),
        json!({"mountPath": "/v"}),
        json!({"securityContext": {"fsGroup": 4321}}),
    );
    kubelet.add(pod("web", "u1", spec.clone())).await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(kubelet.waiting("web"), "ContainerCreating");
    assert!(on.node.runtime.sandboxes().is_empty());
    on.put("secret", "key", json!({"a": "c2VjcmV0"}));
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    assert_eq!(on.read("/v", "a").unwrap(), "secret");
    let mount = on.mount("/v");
    assert!(mount.readonly && !mount.selinux_relabel);
    let at = mount_info::at(Path::new(&mount.host_path)).unwrap();
    assert_eq!(at.unwrap().fs_type, "tmpfs");
    let file = fs::metadata(Path::new(&mount.host_path).join("a")).unwrap();
    assert_eq!(
        (file.gid(), file.permissions().mode() & 0o777),
        (4321, 0o440)
    );
    kubelet.remove(pod("web", "u1", spec)).await;
    gone(&kubelet, &on, "u1").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_volume_can_be_removed() {
    let on = Mounting::new();
    let kubelet = on.node.start();
    let spec = with_volume(json!({"secret": {"secretName": "none"}}));
    kubelet.add(pod("web", "u1", spec.clone())).await;
    tokio::time::sleep(3 * SECOND).await;
    kubelet.remove(pod("web", "u1", spec)).await;
    let dir = on.pod_dir("u1");
    until("its end", 10 * SECOND, || !dir.exists()).await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_in_a_config_map_reaches_the_files() {
    let on = Mounting::new();
    on.put("configmap", "settings", json!({"a": "1", "b": "2"}));
    let kubelet = on.node.start();
    let spec = with_volume(json!({"projected": {"sources": [
        {"configMap": {"name": "settings"}},
        {"downwardAPI": {"items": [{"path": "pod/name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "requests.cpu"}}]}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}}
    ]}}));
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    assert_eq!(on.read("/v", "a").unwrap(), "1");
    assert_eq!(on.read("/v", "pod/name").unwrap(), "web");
    assert_eq!(on.read("/v", "cpu").unwrap(), "0");
    assert_eq!(on.read("/v", "token").unwrap(), "default:default:vault");
    let volume = PathBuf::from(on.mount("/v").host_path);
    let shown = || fs::read_link(volume.join("..data")).unwrap();
    let before = shown();
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(shown(), before, "it was written again for nothing");
    on.put("configmap", "settings", json!({"a": "3", "c": "4"}));
    until("the new file", 100 * SECOND, || {
        on.read("/v", "c").is_some()
    })
    .await;
    assert_eq!(on.read("/v", "a").unwrap(), "3");
    assert_eq!(on.read("/v", "b"), None);
    assert_eq!(on.node.runtime.containers().len(), 1);
    kubelet.remove(pod("web", "u1", spec)).await;
    gone(&kubelet, &on, "u1").await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_in_trust_bundles_reaches_the_file() {
    let on = Mounting::new();
    let certificate =
        |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let put = |name: &str, certificates: &str| {
        let bundle = json!({
            "metadata": {"name": name, "labels": {"for": "web"}},
            "spec": {"signerName": "example.com/ca", "trustBundle": certificates}
        });
        on.objects
            .put("clustertrustbundle.certificates.k8s.io", bundle);
    };
    put(
        "example.com:ca:1",
        &format!("# one\n{}", certificate("MDAx")),
    );
    let kubelet = on.node.start();
    let spec = with(
        json!({"projected": {"sources": [
            {"clusterTrustBundle": {"path": "signer.pem", "signerName": "example.com/ca",
                "labelSelector": {"matchLabels": {"for": "web"}}}},
            {"clusterTrustBundle": {"path": "named/ca.pem", "name": "example.com:ca:2"}},
            {"clusterTrustBundle": {"path": "none.pem", "name": "none", "optional": true}}
        ]}}),
        json!({"mountPath": "/v"}),
        json!({"securityContext": {"fsGroup": 4321}}),
    );
    kubelet.add(pod("web", "u1", spec.clone())).await;
    tokio::time::sleep(20 * SECOND).await;
    // The required bundle is missing.
    assert_eq!(kubelet.waiting("web"), "ContainerCreating");
    assert!(on.node.runtime.sandboxes().is_empty());
    put("example.com:ca:2", &certificate("MDAy"));
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    let both = |first: &str, second: &str| {
        let file = on.read("/v", "signer.pem").unwrap();
        let (first, second) = (certificate(first), certificate(second));
        file == format!("{first}{second}") || file == format!("{second}{first}")
    };
    assert!(both("MDAx", "MDAy"));
    assert_eq!(on.read("/v", "named/ca.pem").unwrap(), certificate("MDAy"));
    assert_eq!(on.read("/v", "none.pem").unwrap(), "");
    let volume = PathBuf::from(on.mount("/v").host_path);
    let file = fs::metadata(volume.join("signer.pem")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o777), (4321, 0o640));
    let shown = || fs::read_link(volume.join("..data")).unwrap();
    let before = shown();
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(shown(), before, "it was written again for nothing");
    put("example.com:ca:2", &certificate("MDAz"));
    until("the new certificate", 100 * SECOND, || both("MDAx", "MDAz")).await;
    assert_eq!(on.read("/v", "named/ca.pem").unwrap(), certificate("MDAz"));
    assert_eq!(on.node.runtime.containers().len(), 1);
    kubelet.remove(pod("web", "u1", spec)).await;
    gone(&kubelet, &on, "u1").await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_leaves_mounts_as_they_are() {
    let on = Mounting::new();
    on.put("secret", "key", json!({"a": "c2VjcmV0"}));
    let kubelet = on.node.start();
    let memory = with(
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
        json!({"mountPath": "/v", "subPathExpr": "part/$(NAME)"}),
        json!({}),
    );
    let secret = with_volume(json!({"secret": {"secretName": "key"}}));
    let pods = vec![pod("memory", "u1", memory), pod("secret", "u2", secret)];
    kubelet.add_all(pods.clone()).await;
    for name in ["memory", "secret"] {
        kubelet.until_phase(name, "Running", 10 * SECOND).await;
    }
    let written = on
        .pod_dir("u1")
        .join("volumes/kubernetes.io~empty-dir/v/part/one/f");
    fs::write(&written, "kept").unwrap();
    let before = on.mounts();
    assert_eq!(before.len(), 3, "{before:?}");
    kubelet.stop().await;

    let kubelet = on.node.start();
    kubelet.add_all(pods.clone()).await;
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(on.mounts(), before);
    assert_eq!(fs::read_to_string(&written).unwrap(), "kept");
    assert_eq!(on.node.runtime.containers().len(), 2);
    kubelet.stop().await;

    // A kubelet that no longer receives the pods removes the mounts.
    let kubelet = on.node.start();
    gone(&kubelet, &on, "u1").await;
    gone(&kubelet, &on, "u2").await;
}

#[tokio::test(start_paused = true)]
async fn volumes_in_memory_are_sized_by_what_the_node_offers() {
    let on = Mounting::new();
    on.put("secret", "key", json!({"a": "c2VjcmV0"}));
    on.objects.put(
        "node",
        json!({"metadata": {"name": "node"}, "status": {"allocatable": {"memory": "64Mi"}}}),
    );
    let kubelet = on.node.start();
    let volumes = [
        ("u1", json!({"emptyDir": {"medium": "Memory"}})),
        ("u2", json!({"secret": {"secretName": "key"}})),
    ];
    for (uid, volume) in volumes {
        kubelet.add(pod(uid, uid, with_volume(volume))).await;
        kubelet.until_phase(uid, "Running", 10 * SECOND).await;
        let mounts = mount_info::within(&on.pod_dir(uid)).unwrap();
        let options = &mounts[0].super_options;
        let size = format!("size={}k", 64 << 10);
        assert!(options.split(',').any(|option| option == size), "{options}");
    }
    for uid in ["u1", "u2"] {
        kubelet.remove(pod(uid, uid, json!({}))).await;
    }
    until("the pods' end", 60 * SECOND, || on.mounts().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_unknown_plugin_left_holds_up_no_worker() {
    let on = Mounting::new();
    let kubelet = on.node.start();
    let spec = json!({"terminationGracePeriodSeconds": 1});
    kubelet.add(pod("web", "u1", spec.clone())).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let left = on.pod_dir("u1").join("volumes/kubernetes.io~rbd/disk");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("precious"), "x").unwrap();
    for runs in [2, 3] {
        kubelet.remove(pod("web", "u1", spec.clone())).await;
        // The pod starts again only after its worker has ended.
        kubelet.add(pod("web", "u1", spec.clone())).await;
        until("the next run", 20 * SECOND, || {
            on.node.runtime.calls(Verb::StartContainer) == runs
        })
        .await;
    }
    assert!(left.join("precious").exists());
    fs::remove_file(left.join("precious")).unwrap();
    kubelet.remove(pod("web", "u1", spec)).await;
    gone(&kubelet, &on, "u1").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_a_kind_of_old_is_waited_for_with_the_reason() {
    let mut on = Mounting::new();
    let (recorder, mut events) = EventRecorder::new("node");
    on.node.events = recorder;
    on.objects.put(
        "persistentvolume",
        json!({"metadata": {"name": "pv"}, "spec": {
            "claimRef": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
            "gcePersistentDisk": {"pdName": "disk"}
        }}),
    );
    on.objects.put(
        "persistentvolumeclaim",
        json!({"metadata": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
    );
    let kubelet = on.node.start();
    let claim = json!({"persistentVolumeClaim": {"claimName": "claim"}});
    kubelet.add(pod("web", "u1", with_volume(claim))).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(kubelet.phase("web"), "Pending");
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
        .filter(|event| event.reason.as_deref() == Some("FailedMount"))
        .filter_map(|event| event.message)
        .collect();
    let why = "driver name pd.csi.storage.gke.io not found in the list of registered CSI drivers";
    assert!(told[0].contains(why), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn mount_options_that_a_kind_does_not_have_are_refused() {
    let mut on = Mounting::new();
    let (recorder, mut events) = EventRecorder::new("node");
    on.node.events = recorder;
    let put = |metadata: Value, options: Value| {
        let volume = json!({"metadata": metadata, "spec": {
            "claimRef": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
            "hostPath": {"path": on.dir()}, "mountOptions": options
        }});
        on.objects.put("persistentvolume", volume);
    };
    let claim = json!({"metadata": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    on.objects.put("persistentvolumeclaim", claim);
    let kubelet = on.node.start();
    let options = "volume.beta.kubernetes.io/mount-options";
    for (uid, metadata, given) in [
        ("u1", json!({"name": "pv"}), json!(["noatime"])),
        (
            "u2",
            json!({"name": "pv", "annotations": {options: "noatime"}}),
            json!([]),
        ),
    ] {
        put(metadata, given);
        let claim = json!({"persistentVolumeClaim": {"claimName": "claim"}});
        kubelet.add(pod(uid, uid, with_volume(claim))).await;
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(kubelet.phase(uid), "Pending");
        let told: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
            .filter(|event| event.reason.as_deref() == Some("FailedMount"))
            .filter_map(|event| event.message)
            .collect();
        let why = "MountVolume.MountOptionSupport check failed for volume \"pv\" : mount options \
                   are not supported for this volume type";
        assert!(told.iter().any(|message| message == why), "{told:?}");
        put(json!({"name": "pv"}), json!([]));
        kubelet.until_phase(uid, "Running", 200 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn files_of_a_local_volume_outlive_pods() {
    let on = Mounting::new();
    let kubelet = on.node.start();
    let data = on.dir().join("data");
    fs::create_dir(&data).unwrap();
    on.objects.put(
        "persistentvolume",
        json!({"metadata": {"name": "pv"}, "spec": {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
            "local": {"path": data.to_str().unwrap()}
        }}),
    );
    let claim = |phase: &str| {
        json!({"metadata": {"name": "claim", "namespace": "default", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": phase, "capacity": {"storage": "1Gi"}}})
    };
    on.objects.put("persistentvolumeclaim", claim("Pending"));
    let spec = with(
        json!({"persistentVolumeClaim": {"claimName": "claim"}}),
        json!({"mountPath": "/v"}),
        json!({"securityContext": {"fsGroup": 4321}}),
    );
    kubelet.add(pod("web", "u1", spec.clone())).await;
    tokio::time::sleep(10 * SECOND).await;
    assert!(on.node.runtime.sandboxes().is_empty());
    on.objects.put("persistentvolumeclaim", claim("Bound"));
    kubelet.until_phase("web", "Running", 30 * SECOND).await;
    let seen = on.mount("/v").host_path;
    fs::write(Path::new(&seen).join("f"), "kept").unwrap();
    assert_eq!(fs::metadata(&data).unwrap().gid(), 4321);
    kubelet.remove(pod("web", "u1", spec)).await;
    gone(&kubelet, &on, "u1").await;
    assert_eq!(fs::read_to_string(data.join("f")).unwrap(), "kept");
}

#[tokio::test(start_paused = true)]
async fn images_are_mounted_by_the_runtime() {
    let on = Mounting::new();
    let model = on.node.runtime.add_image("model:1");
    let kubelet = on.node.start();
    let spec = with(
        json!({"image": {"reference": "model:1", "pullPolicy": "IfNotPresent"}}),
        json!({"mountPath": "/v", "subPath": "weights"}),
        json!({}),
    );
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let mount = on.mount("/v");
    assert_eq!(mount.image.unwrap().image, model);
    assert_eq!(mount.image_sub_path, "weights");
    assert!(mount.host_path.is_empty() && mount.readonly);
}

#[tokio::test(start_paused = true)]
async fn a_sub_path_without_a_value_is_no_config() {
    let on = Mounting::new();
    let kubelet = on.node.start();
    let spec = with(
        json!({"emptyDir": {}}),
        json!({"mountPath": "/v", "subPathExpr": "$(NOTHING)"}),
        json!({}),
    );
    kubelet.add(pod("web", "u1", spec)).await;
    until("the reason", 10 * SECOND, || {
        kubelet.waiting("web") == "CreateContainerConfigError"
    })
    .await;
    let state = kubelet.container("web").state.unwrap().waiting.unwrap();
    assert_eq!(state.message.unwrap(), "missing value for NOTHING");
}
