//! Volumes whose files the kubelet writes.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, VolumeMount};

use super::{
    VolumeError, VolumeHost,
    atomic_writer::{self, Payload},
    blocking_on_own_files,
    empty_dir::{self, Medium},
    mount, ownership,
    plugin::{Attributes, MountRequest, Mounted, PodVolume},
};

/// File mode if the spec has none.
const DEFAULT_MODE: u32 = 0o644;

/// Mount attributes of such volumes.
pub(super) const ATTRIBUTES: Attributes = Attributes {
    read_only: true,
    managed: true,
    selinux_relabel: true,
};

/// Where the files are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileStorage {
    OnDisk,
    InMemory,
}

/// Sets up a volume with the files of `payload`, or updates its files.
pub(super) async fn set_up(
    host: &VolumeHost,
    request: &MountRequest,
    payload: Payload,
    storage: FileStorage,
) -> Result<Mounted, VolumeError> {
    let request = request.clone();
    let medium = match storage {
        FileStorage::OnDisk => Medium::Disk,
        FileStorage::InMemory => Medium::Memory(empty_dir::memory_size(
            &request.pod,
            None,
            host.allocatable_memory().await,
        )),
    };
    blocking_on_own_files(move || {
        let dir = &request.dir;
        let is_mounted = storage == FileStorage::OnDisk || mount::is_mounted(dir)?;
        if !dir.is_dir() || !is_mounted {
            empty_dir::make(dir, &medium)?;
        }
        for nested in nested_mount_points(request.name(), &request.pod) {
            mount::make_dir(&dir.join(nested), 0o755)?;
        }
        atomic_writer::write(dir, &payload, || match request.fs_group {
            Some(group) => {
                let progress = &request.ownership_progress;
                ownership::set(dir, empty_dir::whole(group), true, progress)
            }
            None => Ok(()),
        })?;
        Ok(Mounted::Path(request.dir))
    })
    .await
}

/// Removes such a volume.
pub(super) async fn tear_down(host: &VolumeHost, volume: &PodVolume) -> Result<(), VolumeError> {
    let dir = host.volume_dir(volume);
    blocking_on_own_files(move || mount::remove_contents(&dir)).await
}

/// The mode of a file: its own, or else the volume's default, or else `DEFAULT_MODE`.
pub(super) fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    let mode = own.or(default).and_then(|mode| u32::try_from(mode).ok());
    mode.unwrap_or(DEFAULT_MODE)
}

/// Mount points that containers need inside this volume. They must be created in advance, as
/// containers mount the volume read-only.
fn nested_mount_points(name: &str, pod: &Pod) -> Vec<PathBuf> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers).map(|it| &it.volume_mounts);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mounts = containers.chain(ephemeral.map(|it| &it.volume_mounts));
    mounts
        .flatten()
        .flat_map(|mounts| nested_in(name, mounts))
        .collect()
}

fn nested_in(name: &str, mounts: &[VolumeMount]) -> Vec<PathBuf> {
    let mut nested: Vec<PathBuf> = Vec::new();
    for own in mounts.iter().filter(|mount| mount.name == name) {
        for other in mounts {
            let below = Path::new(&other.mount_path).strip_prefix(&own.mount_path);
            let Ok(below) = below else {
                continue;
            };
            let plain = below
                .components()
                .all(|c| matches!(c, Component::Normal(_)));
            if plain && !below.as_os_str().is_empty() {
                nested.push(below.to_owned());
            }
        }
    }
    nested.sort_unstable();
    // A mount point below another one is created in the outer mount.
    let mut outermost: Vec<PathBuf> = Vec::new();
    for path in nested {
        if !outermost.iter().any(|outer| path.starts_with(outer)) {
            outermost.push(path);
        }
    }
    outermost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_inside_the_volume_are_found() {
        let mounts: Vec<_> = ["/etc/c", "/etc/c/a", "/etc/c/a/b", "/etc/cd", "/etc/c/x/y"]
            .iter()
            .map(|path| {
                let name = if *path == "/etc/c" { "config" } else { "other" };
                serde_json::json!({"name": name, "mountPath": path})
            })
            .collect();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {
                "containers": [{"name": "c", "volumeMounts": mounts}],
                "ephemeralContainers": [{"name": "e", "volumeMounts": [
                    {"name": "config", "mountPath": "/c"}, {"name": "other", "mountPath": "/c/e"}
                ]}]
            }
        }))
        .unwrap();
        let nested = nested_mount_points("config", &pod);
        assert_eq!(nested, ["a", "x/y", "e"].map(Path::new));
    }
}
