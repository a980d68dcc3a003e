//! Discovery of volumes in the directories of pods, and removal of these directories.

use std::{io, path::Path};

use kubelet_host::mount_info;
use kubelet_pod_spec::identity::PodUid;

use super::{VolumeError, entries::children, mount, plugin::PodVolume, spec::VolumeMode, subpath};

/// The volumes in a pod's directory. Blocks.
///
/// # Errors
/// A directory exists, but cannot be read.
pub fn volumes(pod_dir: &Path, uid: &PodUid) -> Result<Vec<PodVolume>, VolumeError> {
    let mut found = Vec::new();
    for (dir, mode) in [
        ("volumes", VolumeMode::Filesystem),
        ("volumeDevices", VolumeMode::Block),
    ] {
        for (plugin, path) in children(&pod_dir.join(dir))? {
            for (name, _) in children(&path)? {
                found.push(PodVolume {
                    uid: uid.clone(),
                    plugin: plugin.replacen('~', "/", 1),
                    name,
                    mode,
                });
            }
        }
    }
    Ok(found)
}

/// Removes the directory of a pod whose volumes were unmounted. Mounts that are left in it, and
/// files where only mount points belong, prevent the removal: they may be data that outlives the
/// pod. Blocks.
///
/// # Errors
/// Something is still mounted, or cannot be removed.
pub fn remove_pod_dir(pod_dir: &Path) -> Result<(), VolumeError> {
    subpath::clean_pod(pod_dir)?;
    let mounts = mount_info::within(pod_dir)
        .map_err(|error| VolumeError::io("check for mounts at", pod_dir, error))?;
    if let Some(mount) = mounts.first() {
        let busy = io::Error::other("something is still mounted there");
        return Err(VolumeError::io("remove", &mount.mount_point, busy));
    }
    tree_walk::remove_directories(&pod_dir.join("volumes"))?;
    mount::remove_contents(pod_dir)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_tells_its_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let uid = PodUid::from("u");
        assert_eq!(volumes(dir.path(), &uid).unwrap(), []);
        for path in [
            "volumes/kubernetes.io~empty-dir/cache",
            "volumeDevices/kubernetes.io~csi/pv-1",
            "plugins/kubernetes.io~empty-dir/cache",
        ] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let found = volumes(dir.path(), &uid).unwrap();
        let told: Vec<String> = found
            .iter()
            .map(|volume| format!("{volume} {:?}", volume.mode))
            .collect();
        assert_eq!(
            told,
            [
                "kubernetes.io/empty-dir/cache Filesystem",
                "kubernetes.io/csi/pv-1 Block"
            ]
        );
    }

    #[test]
    fn files_of_unknown_volumes_are_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pod_dir = dir.path().join("u");
        let volume = pod_dir.join("volumes/example.com~own/data");
        fs::create_dir_all(&volume).unwrap();
        fs::create_dir_all(pod_dir.join("containers/c")).unwrap();
        fs::write(volume.join("precious"), "x").unwrap();
        let error = remove_pod_dir(&pod_dir).unwrap_err();
        assert!(error.to_string().contains("precious"), "{error}");
        assert!(volume.join("precious").exists());
        fs::remove_file(volume.join("precious")).unwrap();
        remove_pod_dir(&pod_dir).unwrap();
        assert!(!pod_dir.exists());
        remove_pod_dir(&pod_dir).unwrap();
    }
}
