//! `emptyDir`: a directory with the lifetime of its pod. Depending on its medium, it is on the
//! node's disk, in memory or in huge pages.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use kubelet_host::mount_info;
use kubelet_pod_spec::resources;

use super::{
    VolumeError, VolumeHost, blocking_on_own_files, huge_pages, mount, ownership,
    plugin::{Attributes, FsGroup, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

const NAME: &str = "kubernetes.io/empty-dir";

/// The plugin.
#[derive(Debug)]
pub(super) struct EmptyDir {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for EmptyDir {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline()
            .is_some_and(|volume| volume.empty_dir.is_some())
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        Attributes {
            read_only: false,
            managed: true,
            selinux_relabel: true,
        }
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        let source = request.spec.inline().and_then(|v| v.empty_dir.as_ref());
        match source.and_then(|source| source.medium.as_deref()) {
            // Deleted files that are still open take memory too.
            Some("Memory") => UsageSource::FileSystem(request.dir.clone()),
            // hugetlbfs without a size limit reports nothing to statfs.
            _ => UsageSource::Directory(request.dir.clone()),
        }
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        let (request, host) = (request.clone(), self.host.clone());
        let make = move |memory| {
            let source = request.spec.inline().and_then(|v| v.empty_dir.as_ref());
            let medium = Medium::of(&request, source, memory)?;
            let marker = marker(&host, &request.volume);
            if is_ready(&request.dir, &medium, &marker)? {
                return Ok(Mounted::Path(request.dir));
            }
            make(&request.dir, &medium)?;
            if let Some(group) = request.fs_group {
                ownership::set(
                    &request.dir,
                    whole(group),
                    false,
                    &request.ownership_progress,
                )?;
            }
            mark(&marker)?;
            Ok(Mounted::Path(request.dir))
        };
        async move {
            let memory = self.host.allocatable_memory().await;
            blocking_on_own_files(move || make(memory)).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        let (dir, marker) = (self.host.volume_dir(volume), marker(&self.host, volume));
        blocking_on_own_files(move || {
            mount::remove_contents(&marker)?;
            mount::remove_contents(&dir)
        })
        .boxed()
    }
}

/// Upstream sets the group of such volumes regardless of `fsGroupChangePolicy`.
pub(super) const fn whole(group: FsGroup) -> FsGroup {
    FsGroup {
        on_root_mismatch: false,
        ..group
    }
}

/// The storage of a directory.
#[derive(Debug)]
pub(super) enum Medium {
    Disk,
    /// With its maximum size in bytes.
    Memory(i64),
    /// With the page size in bytes.
    HugePages(i64),
}

impl Medium {
    fn of(
        request: &MountRequest,
        source: Option<&EmptyDirVolumeSource>,
        memory: i64,
    ) -> Result<Self, VolumeError> {
        let medium = source.and_then(|source| source.medium.as_deref());
        match medium.unwrap_or_default() {
            "" => Ok(Self::Disk),
            "Memory" => {
                let limit = source.and_then(|source| source.size_limit.as_ref());
                let limit = limit.and_then(resources::quantity_units);
                Ok(Self::Memory(memory_size(&request.pod, limit, memory)))
            }
            huge if huge.starts_with("HugePages") => huge_pages::page_size(huge, &request.pod)
                .map(Self::HugePages)
                .map_err(|why| VolumeError::invalid(request.name(), why)),
            other => Err(VolumeError::invalid(
                request.name(),
                format!("unknown storage medium {other:?}"),
            )),
        }
    }
}

/// The smallest of the limits of the volume, the pod and the node.
pub(super) fn memory_size(pod: &Pod, limit: Option<i64>, node: i64) -> i64 {
    let spec = pod.spec.as_ref();
    let limit_of_pod = |spec| resources::units(resources::limit(spec, "memory"));
    let pod = spec
        .filter(|spec| resources::is_limited(spec, "memory"))
        .map(limit_of_pod);
    let limits = [pod, limit].into_iter().flatten();
    limits.filter(|limit| *limit > 0).fold(node, i64::min)
}

/// Creates the directory, accessible to everyone, and mounts its medium.
pub(super) fn make(dir: &Path, medium: &Medium) -> Result<(), VolumeError> {
    mount::make_dir(dir, 0o777)?;
    let fs_type = match medium {
        Medium::Disk => None,
        Medium::Memory(_) => Some("tmpfs"),
        Medium::HugePages(_) => Some("hugetlbfs"),
    };
    if fs_type.is_some() && mounted_type(dir)?.as_deref() == fs_type {
        return Ok(());
    }
    // The mode at creation was subject to the umask.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
        .map_err(|error| VolumeError::io("set the mode of", dir, error))?;
    match medium {
        Medium::Disk => Ok(()),
        Medium::Memory(size) => mount::tmpfs(dir, Some(*size).filter(|size| *size > 0)),
        Medium::HugePages(size) => {
            let options = format!("pagesize={size}");
            mount::file_system("nodev", "hugetlbfs", dir, &options)
                .map_err(|error| VolumeError::io("mount huge pages on", dir, error))
        }
    }
}

fn mounted_type(dir: &Path) -> Result<Option<String>, VolumeError> {
    let mount =
        mount_info::at(dir).map_err(|error| VolumeError::io("check for mounts at", dir, error))?;
    Ok(mount.map(|mount| mount.fs_type))
}

fn is_ready(dir: &Path, medium: &Medium, marker: &Path) -> Result<bool, VolumeError> {
    let is_there = match medium {
        Medium::Disk => dir.is_dir(),
        Medium::Memory(_) => mounted_type(dir)?.as_deref() == Some("tmpfs"),
        Medium::HugePages(_) => mounted_type(dir)?.as_deref() == Some("hugetlbfs"),
    };
    Ok(is_there && marker.join("ready").exists())
}

/// Directory of the file that marks a volume as complete; the path is upstream's.
fn marker(host: &VolumeHost, volume: &PodVolume) -> PathBuf {
    let plugins = host.pod_dir(&volume.uid).join("plugins");
    plugins.join(NAME.replace('/', "~")).join(&volume.name)
}

fn mark(marker: &Path) -> Result<(), VolumeError> {
    mount::make_dir(marker, 0o750)?;
    let path = marker.join("ready");
    fs::write(&path, "").map_err(|error| VolumeError::io("create", &path, error))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt as _, sync::Arc};

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kubelet_api_client::{events::EventRecorder, objects::NoObjects};
    use kubelet_pod_spec::identity::PodUid;
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::{VolumeMode, VolumeSource, VolumeSpec};

    /// A node with 1 GiB of memory; unmounts everything when dropped.
    struct Node(tempfile::TempDir);

    impl Node {
        fn plugin(&self) -> EmptyDir {
            EmptyDir {
                host: VolumeHost {
                    root_dir: self.0.path().to_owned(),
                    node_name: "node".to_owned(),
                    selinux: None,
                    objects: std::sync::Arc::new(NoObjects),
                    allocatable: std::sync::Arc::new(
                        [("memory".to_owned(), Quantity("1Gi".to_owned()))].into(),
                    ),
                    events: EventRecorder::default(),
                },
            }
        }

        fn request(&self, source: Value, fs_group: Option<u32>) -> MountRequest {
            let inline = serde_json::from_value(json!({"name": "v", "emptyDir": source}));
            let volume = PodVolume {
                uid: PodUid::from("u"),
                plugin: NAME.to_owned(),
                name: "v".to_owned(),
                mode: VolumeMode::Filesystem,
            };
            MountRequest {
                pod: std::sync::Arc::default(),
                spec: VolumeSpec {
                    name: "v".to_owned(),
                    source: VolumeSource::Inline(Box::new(inline.unwrap())),
                    read_only: false,
                    mode: VolumeMode::Filesystem,
                    capacity: None,
                    migrated: false,
                },
                dir: self.plugin().host.volume_dir(&volume),
                volume,
                device: None,
                attachment: None,
                fs_group: fs_group.map(|gid| FsGroup {
                    gid,
                    on_root_mismatch: false,
                }),
                fs_user: None,
                selinux_label: None,
                ownership_progress: Arc::default(),
            }
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = mount::unmount_all(self.0.path());
        }
    }

    #[tokio::test]
    async fn contents_stay_until_the_volume_is_given_back() {
        let node = Node(tempfile::tempdir().unwrap());
        let plugin = node.plugin();
        for (source, mode) in [(json!({}), 0o2777), (json!({"medium": "Memory"}), 0o3777)] {
            let request = node.request(source, Some(4321));
            plugin.set_up(&request).await.unwrap();
            let made = fs::metadata(&request.dir).unwrap();
            assert_eq!((made.gid(), made.mode() & 0o7777), (4321, mode));
            fs::write(request.dir.join("f"), "x").unwrap();
            plugin.set_up(&request).await.unwrap();
            assert!(request.dir.join("f").exists());
            plugin.tear_down(&request.volume).await.unwrap();
            assert!(!request.dir.exists());
            plugin.tear_down(&request.volume).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_mount_that_a_container_left_is_not_deleted_through() {
        let node = Node(tempfile::tempdir().unwrap());
        let plugin = node.plugin();
        let request = node.request(json!({}), None);
        plugin.set_up(&request).await.unwrap();
        let (data, inside) = (node.0.path().join("data"), request.dir.join("inside"));
        for dir in [&data, &inside] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(data.join("precious"), "x").unwrap();
        mount::bind(&data, &inside).unwrap();
        plugin.tear_down(&request.volume).await.unwrap();
        assert!(!request.dir.exists() && data.join("precious").exists());
    }

    #[test]
    fn memory_is_the_least_of_all_limits() {
        let size = |spec: Value, limit| {
            let spec = serde_json::from_value(spec).unwrap();
            let pod = Pod {
                spec: Some(spec),
                ..Pod::default()
            };
            memory_size(&pod, limit, 1000)
        };
        let limited =
            |memory: &str| json!({"name": "c", "resources": {"limits": {"memory": memory}}});
        let two = json!({"containers": [limited("100"), limited("200")]});
        assert_eq!(size(two.clone(), None), 300);
        assert_eq!(size(two.clone(), Some(50)), 50);
        assert_eq!(
            size(json!({"containers": [limited("100"), {"name": "d"}]}), None),
            1000
        );
        assert_eq!(
            size(json!({"containers": [limited("2000")]}), Some(0)),
            1000
        );
        let mut init = two;
        init["initContainers"] = json!([limited("400")]);
        assert_eq!(size(init.clone(), None), 400);
        // An init container runs beside the sidecars before it, and the pod has overhead.
        let mut sidecar = limited("100");
        sidecar["restartPolicy"] = json!("Always");
        init["initContainers"] = json!([sidecar, limited("400")]);
        assert_eq!(size(init.clone(), None), 500);
        init["overhead"] = json!({"memory": "7"});
        assert_eq!(size(init.clone(), None), 507);
        init["resources"] = json!({"limits": {"memory": "600"}});
        assert_eq!(size(init, None), 607);
    }
}
