//! Mounts of a container, and its devices from block volumes.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use cri_proto::runtime::v1::{Device, ImageSpec, Mount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, VolumeMount};
use kubelet_host::{file_work::FileWork, selinux::SeLinux};
use kubelet_pod_spec::expansion::TooLong;
use kubelet_volume::{MountedVolumes, plugin::Mounted};

use super::container_config::TERMINATION_MESSAGE_PATH;

/// Why a container cannot have its mounts or devices. Messages do not contain paths of the node's
/// file system, because their reader may not be its owner.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MountError {
    /// The pod has no such volume, or it is of the wrong kind.
    #[error("cannot find volume {volume:?} to {action} container {container:?}")]
    Unknown {
        /// Name of the volume.
        volume: String,
        /// `mount into` or `pass into`.
        action: &'static str,
        /// Name of the container.
        container: String,
    },
    /// `subPathExpr` is too long.
    #[error("subPathExpr: {0}")]
    TooLong(#[from] TooLong),
    /// `subPathExpr` references variables without a value.
    #[error("missing value for {}", .0.join(", "))]
    MissingValue(Vec<String>),
    /// The sub-path is absolute.
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    /// The sub-path contains `..`.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backsteps(String),
    /// The sub-path could not be created or bound.
    #[error(
        "failed to {action} subPath{what} for volumeMount {volume:?} of container {container:?}"
    )]
    SubPath {
        /// `create` or `prepare`.
        action: &'static str,
        /// Suffix of `subPath` in the message: ` directory` or empty.
        what: &'static str,
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
    },
    /// A recursive read-only mount is not possible.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but {why}"
    )]
    RecursiveReadOnly {
        /// Name of the volume.
        volume: String,
        /// The reason.
        why: String,
    },
    /// The mount propagation mode is unknown.
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    /// Could not determine whether the mounted files have SELinux labels of their own.
    #[error("cannot determine whether {what} has SELinux labels: {why}")]
    Labels {
        /// The volume or file.
        what: String,
        /// The error.
        why: String,
    },
    /// The path of a device in the container is relative.
    #[error("error DevicePath `{0}` must be an absolute path")]
    DevicePath(String),
}

/// Everything that the mounts of a container are computed from.
#[derive(Clone, Debug)]
pub struct MountParts {
    /// The container.
    pub container: Container,
    /// Directory of its pod.
    pub pod_dir: PathBuf,
    /// The pod's volumes.
    pub volumes: MountedVolumes,
    /// Names and values of the container's environment variables.
    pub variables: Vec<(String, String)>,
    /// The images of its image volumes, by volume name.
    pub images: BTreeMap<String, ImageSpec>,
    /// Whether the runtime supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// The pod's hosts file on the node; `None` if it is not mounted.
    pub hosts_file: Option<PathBuf>,
    /// The termination message file on the node; `None` if it is not mounted.
    pub termination_message: Option<PathBuf>,
    /// The file work of the sync. Once it is abandoned, no more sub-paths are bound.
    pub file_work: FileWork,
    /// SELinux, if the node supports it.
    pub selinux: Option<SeLinux>,
}

/// The paths of bound sub-paths, by the index of the mount in the container's spec.
#[derive(Debug, Default)]
pub struct SubPaths(pub(super) BTreeMap<usize, PathBuf>);

impl SubPaths {
    /// The path of the sub-path of a mount.
    fn get(&self, index: usize) -> Option<&PathBuf> {
        self.0.get(&index)
    }
}

impl MountParts {
    /// The mounts of the container: its volumes in the order of its spec, then the files of the
    /// kubelet. `bound` is the result of [`bind_sub_paths`](Self::bind_sub_paths).
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn mounts(&self, bound: &SubPaths) -> Result<Vec<Mount>, MountError> {
        let mut mounts = Vec::new();
        for (index, mount) in self.container.volume_mounts.iter().flatten().enumerate() {
            mounts.push(self.volume_mount(mount, bound.get(index))?);
        }
        if let Some(hosts) = &self.hosts_file {
            mounts.push(self.file("/etc/hosts", hosts)?);
        }
        if let Some(message) = &self.termination_message {
            let path = self.container.termination_message_path.as_deref();
            mounts.push(self.file(path.unwrap_or(TERMINATION_MESSAGE_PATH), message)?);
        }
        Ok(mounts)
    }

    /// The mount of a file of the kubelet.
    fn file(&self, container_path: &str, host_path: &Path) -> Result<Mount, MountError> {
        Ok(Mount {
            container_path: container_path.to_owned(),
            host_path: host_path.to_string_lossy().into_owned(),
            selinux_relabel: self.has_labels(container_path, host_path)?,
            ..Mount::default()
        })
    }

    /// Whether files at `path` have SELinux labels of their own, so that the runtime has to relabel
    /// them.
    fn has_labels(&self, what: &str, path: &Path) -> Result<bool, MountError> {
        let labels = self
            .selinux
            .as_ref()
            .map(|selinux| selinux.has_labels(path));
        let failed = |error: io::Error| MountError::Labels {
            what: what.to_owned(),
            why: error.kind().to_string(),
        };
        labels
            .transpose()
            .map_err(failed)
            .map(Option::unwrap_or_default)
    }

    fn volume_mount(
        &self,
        mount: &VolumeMount,
        bound: Option<&PathBuf>,
    ) -> Result<Mount, MountError> {
        let unknown = || MountError::Unknown {
            volume: mount.name.clone(),
            action: "mount into",
            container: self.container.name.clone(),
        };
        let volume = self.volumes.get(&mount.name).ok_or_else(unknown)?;
        let sub_path = self.sub_path(mount)?;
        let mut image = None;
        let mut host_path = PathBuf::new();
        match &volume.mounted {
            Mounted::Path(path) if sub_path.is_empty() => host_path.clone_from(path),
            Mounted::Path(_) => {
                let error = io::Error::other("it was not bind-mounted");
                let missing = || self.no_sub_path("prepare", "", mount, &error);
                host_path.clone_from(bound.ok_or_else(missing)?);
            }
            Mounted::Image => image = Some(self.images.get(&mount.name).ok_or_else(unknown)?),
            Mounted::Device(_) => return Err(unknown()),
        }
        // As upstream, a relative path is relative to the container's root directory.
        let container_path = Path::new("/").join(&mount.mount_path);
        let attributes = volume.attributes;
        let may_relabel = attributes.managed && attributes.selinux_relabel;
        let selinux_relabel = match &volume.mounted {
            Mounted::Path(path) if may_relabel => self.has_labels(&mount.name, path)?,
            _ => false,
        };
        Ok(Mount {
            container_path: container_path.to_string_lossy().into_owned(),
            host_path: host_path.to_string_lossy().into_owned(),
            readonly: mount.read_only.unwrap_or_default() || attributes.read_only,
            selinux_relabel,
            propagation: propagation(mount)?.into(),
            recursive_read_only: self.is_recursive_read_only(mount)?,
            image_sub_path: image.map(|_| sub_path).unwrap_or_default(),
            image: image.cloned(),
            ..Mount::default()
        })
    }

    fn is_recursive_read_only(&self, mount: &VolumeMount) -> Result<bool, MountError> {
        let wanted = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
        if wanted == "Disabled" {
            return Ok(false);
        }
        let refused = |why: String| MountError::RecursiveReadOnly {
            volume: mount.name.clone(),
            why,
        };
        if mount.read_only != Some(true) {
            return Err(refused("it is not read-only".to_owned()));
        }
        if let Some(propagation) = mount.mount_propagation.as_deref()
            && propagation != "None"
        {
            let why = format!("it is not compatible with propagation {propagation:?}");
            return Err(refused(why));
        }
        match (wanted, self.recursive_read_only) {
            ("Enabled", false) => Err(refused("it is not supported by the runtime".to_owned())),
            ("Enabled" | "IfPossible", supported) => Ok(supported),
            (other, _) => Err(refused(format!("{other:?} is not a valid mode"))),
        }
    }
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, MountError> {
    Ok(match mount.mount_propagation.as_deref() {
        None | Some("None" | "") => MountPropagation::PropagationPrivate,
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        Some(other) => return Err(MountError::Propagation(other.to_owned())),
    })
}

/// The devices of a container from block volumes.
///
/// # Errors
/// See [`MountError`].
pub fn devices(container: &Container, volumes: &MountedVolumes) -> Result<Vec<Device>, MountError> {
    let device = |device: &k8s_openapi::api::core::v1::VolumeDevice| {
        if !device.device_path.starts_with('/') {
            return Err(MountError::DevicePath(device.device_path.clone()));
        }
        let volume = volumes.get(&device.name);
        match volume.map(|volume| (&volume.mounted, volume.attributes.read_only)) {
            Some((Mounted::Device(path), read_only)) => Ok(Device {
                container_path: device.device_path.clone(),
                host_path: path.to_string_lossy().into_owned(),
                permissions: if read_only { "r" } else { "mrw" }.to_owned(),
            }),
            _ => Err(MountError::Unknown {
                volume: device.name.clone(),
                action: "pass into",
                container: container.name.clone(),
            }),
        }
    };
    let devices = container.volume_devices.iter().flatten();
    devices.map(device).collect()
}

#[cfg(test)]
mod tests {
    use kubelet_volume::{
        MountedVolume,
        plugin::Attributes,
        spec::{VolumeMode, VolumeSource, VolumeSpec},
    };
    use serde_json::{Value, json};

    use super::*;

    fn volume(name: &str, mounted: Mounted, read_only: bool) -> (String, MountedVolume) {
        let inline = serde_json::from_value(json!({"name": name})).unwrap();
        let volume = MountedVolume {
            mounted,
            spec: VolumeSpec {
                name: name.to_owned(),
                source: VolumeSource::Inline(Box::new(inline)),
                read_only,
                mode: VolumeMode::Filesystem,
                capacity: None,
                migrated: false,
            },
            attributes: Attributes {
                read_only,
                managed: true,
                selinux_relabel: true,
            },
        };
        (name.to_owned(), volume)
    }

    fn parts(container: Value) -> MountParts {
        let mut container = container;
        container["name"] = json!("c");
        MountParts {
            container: serde_json::from_value(container).unwrap(),
            pod_dir: PathBuf::from("/pods/u"),
            volumes: [
                volume("data", Mounted::Path(PathBuf::from("/v/data")), false),
                volume("config", Mounted::Path(PathBuf::from("/v/config")), true),
                volume("image", Mounted::Image, true),
                volume("disk", Mounted::Device(PathBuf::from("/v/disk")), false),
            ]
            .into_iter()
            .collect(),
            variables: vec![
                ("A".to_owned(), "a".to_owned()),
                ("E".to_owned(), String::new()),
            ],
            images: [("image".to_owned(), ImageSpec::default())].into(),
            recursive_read_only: true,
            hosts_file: None,
            termination_message: None,
            file_work: FileWork::default(),
            selinux: None,
        }
    }

    fn mount(mount: Value) -> Result<Mount, MountError> {
        let mounts = parts(json!({"volumeMounts": [mount]})).mounts(&SubPaths::default())?;
        Ok(mounts.into_iter().next().unwrap())
    }

    #[test]
    fn what_holds_for_the_volume_holds_for_its_mounts() {
        let data = mount(json!({"name": "data", "mountPath": "d",
            "mountPropagation": "HostToContainer"}))
        .unwrap();
        assert_eq!(
            (data.container_path.as_str(), data.host_path.as_str()),
            ("/d", "/v/data")
        );
        assert!(!data.readonly);
        assert_eq!(
            data.propagation(),
            MountPropagation::PropagationHostToContainer
        );
        let config = mount(json!({"name": "config", "mountPath": "/c"})).unwrap();
        assert!(config.readonly);
        let image = mount(json!({"name": "image", "mountPath": "/i", "subPath": "usr"})).unwrap();
        assert!(image.image.is_some() && image.host_path.is_empty());
        assert_eq!(image.image_sub_path, "usr");
    }

    #[test]
    fn sub_paths_are_expanded_and_stay_inside() {
        let image = |field: &str, path: &str| {
            let made = mount(json!({"name": "image", "mountPath": "/i", field: path}));
            made.map(|mount| mount.image_sub_path)
                .map_err(|error| error.to_string())
        };
        assert_eq!(image("subPathExpr", "x/$(A)").as_deref(), Ok("x/a"));
        for (field, path, error) in [
            ("subPathExpr", "$(E)/$(B)", "missing value for B, E"),
            (
                "subPath",
                "/x",
                "error SubPath `/x` must not be an absolute path",
            ),
            (
                "subPathExpr",
                "$(A)/../..",
                "unable to provision SubPath `a/../..`: must not contain '..'",
            ),
        ] {
            assert_eq!(image(field, path).unwrap_err(), error);
        }
    }

    #[test]
    fn recursive_read_only_needs_its_conditions() {
        let of = |more: Value| {
            let mut spec = json!({"name": "data", "mountPath": "/d"});
            spec.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            mount(spec).map(|mount| mount.recursive_read_only)
        };
        assert_eq!(
            of(json!({"recursiveReadOnly": "Enabled", "readOnly": true})),
            Ok(true)
        );
        assert_eq!(of(json!({"recursiveReadOnly": "Disabled"})), Ok(false));
        of(json!({"recursiveReadOnly": "Enabled"})).unwrap_err();
        of(json!({"recursiveReadOnly": "IfPossible", "readOnly": true,
            "mountPropagation": "HostToContainer"}))
        .unwrap_err();
        let mut old = parts(json!({"volumeMounts": [{"name": "data", "mountPath": "/d",
            "readOnly": true, "recursiveReadOnly": "IfPossible"}]}));
        old.recursive_read_only = false;
        assert!(!old.mounts(&SubPaths::default()).unwrap()[0].recursive_read_only);
        old.container.volume_mounts.as_mut().unwrap()[0].recursive_read_only =
            Some("Enabled".to_owned());
        let error = old.mounts(&SubPaths::default()).unwrap_err().to_string();
        assert!(
            error.ends_with("but it is not supported by the runtime"),
            "{error}"
        );
    }

    #[test]
    fn block_volumes_are_devices() {
        let with = |device: Value| {
            let parts = parts(json!({"volumeDevices": [device]}));
            devices(&parts.container, &parts.volumes)
        };
        let found = with(json!({"name": "disk", "devicePath": "/dev/x"})).unwrap();
        assert_eq!(found[0].host_path, "/v/disk");
        assert_eq!(found[0].permissions, "mrw");
        with(json!({"name": "disk", "devicePath": "x"})).unwrap_err();
        let error = with(json!({"name": "data", "devicePath": "/x"})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot find volume \"data\" to pass into container \"c\""
        );
    }
}
