//! Mounts and devices as the engine has them.

use bollard::models::{
    DeviceMapping, HostConfig, Mount as DockerMount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType,
};
use cri_proto::runtime::v1::{Device, Mount, MountPropagation};

use crate::{Error, engine::Connection};

/// Puts mounts into what the engine is asked to create. A host path that does not exist
/// is made as a directory.
///
/// `relabel` says that the container has an SELinux label of its own to give to mounts
/// that ask for it.
///
/// # Errors
/// `InvalidArgument` or `Unsupported` naming the mount's field.
pub async fn apply_mounts(
    mounts: Vec<Mount>,
    relabel: bool,
    engine: &Connection,
    host: &mut HostConfig,
) -> Result<(), Error> {
    let mut docker = Vec::with_capacity(mounts.len());
    let mut binds = Vec::new();
    for (index, mount) in mounts.into_iter().enumerate() {
        check(index, &mount)?;
        make_source(&mount.host_path).await?;
        if relabel && mount.selinux_relabel {
            binds.push(bind(index, &mount)?);
        } else {
            // Before this API a read-only mount never was recursive, and the option unknown.
            docker.push(convert(mount, engine.serves(1, 44)));
        }
    }
    host.mounts = Some(docker);
    host.binds = Some(binds);
    Ok(())
}

fn check(index: usize, mount: &Mount) -> Result<(), Error> {
    let field = |name: &str| format!("config.mounts[{index}].{name}");
    let lacking = "the Docker engine has no means for it";
    for (name, asked) in [
        ("image", mount.image.is_some()),
        ("recursive_read_only", mount.recursive_read_only),
        ("uidMappings", !mount.uid_mappings.is_empty()),
        ("gidMappings", !mount.gid_mappings.is_empty()),
        ("mount_options", !mount.mount_options.is_empty()),
    ] {
        if asked {
            return Err(Error::unsupported(field(name), lacking));
        }
    }
    for (name, path) in [
        ("host_path", &mount.host_path),
        ("container_path", &mount.container_path),
    ] {
        if !path.starts_with('/') {
            return Err(Error::invalid(
                field(name),
                format!("{path:?} is no absolute path"),
            ));
        }
    }
    Ok(())
}

async fn make_source(path: &str) -> Result<(), Error> {
    let made = match tokio::fs::metadata(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tokio::fs::create_dir_all(path).await
        }
        other => other.map(drop),
    };
    made.map_err(|source| Error::File {
        action: "make the source of a mount",
        path: path.into(),
        source,
    })
}

fn convert(mount: Mount, can_say_non_recursive: bool) -> DockerMount {
    let propagation = match mount.propagation() {
        // Unsaid, as the engine makes it rslave for its own directories, and must.
        MountPropagation::PropagationPrivate => None,
        MountPropagation::PropagationHostToContainer => {
            Some(MountBindOptionsPropagationEnum::RSLAVE)
        }
        MountPropagation::PropagationBidirectional => {
            Some(MountBindOptionsPropagationEnum::RSHARED)
        }
    };
    DockerMount {
        typ: Some(MountType::BIND),
        source: Some(mount.host_path),
        target: Some(mount.container_path),
        read_only: Some(mount.readonly),
        bind_options: Some(MountBindOptions {
            propagation,
            read_only_non_recursive: (mount.readonly && can_say_non_recursive).then_some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The engine relabels only what comes in the older form, in which `:` parts the fields.
fn bind(index: usize, mount: &Mount) -> Result<String, Error> {
    let (source, target) = (&mount.host_path, &mount.container_path);
    if source.contains(':') || target.contains(':') {
        return Err(Error::unsupported(
            format!("config.mounts[{index}].selinux_relabel"),
            "the engine cannot relabel a path with ':'",
        ));
    }
    let access = if mount.readonly { "ro" } else { "rw" };
    let propagation = match mount.propagation() {
        MountPropagation::PropagationPrivate => "",
        MountPropagation::PropagationHostToContainer => ",rslave",
        MountPropagation::PropagationBidirectional => ",rshared",
    };
    Ok(format!("{source}:{target}:{access},Z{propagation}"))
}

/// Devices as the engine has them.
///
/// # Errors
/// `InvalidArgument` naming the device's field.
pub fn devices(devices: Vec<Device>) -> Result<Vec<DeviceMapping>, Error> {
    let convert = |(index, device): (usize, Device)| {
        let bad = device
            .permissions
            .chars()
            .any(|c| !matches!(c, 'r' | 'w' | 'm'));
        if bad {
            return Err(Error::invalid(
                format!("config.devices[{index}].permissions"),
                format!("{:?}; allowed: r, w, m", device.permissions),
            ));
        }
        Ok(DeviceMapping {
            path_on_host: Some(device.host_path),
            path_in_container: Some(device.container_path),
            cgroup_permissions: Some(device.permissions),
        })
    };
    devices.into_iter().enumerate().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::ImageSpec;

    use super::*;

    fn mount() -> Mount {
        Mount {
            host_path: "/var/data".into(),
            container_path: "/data".into(),
            readonly: true,
            ..Default::default()
        }
    }

    #[test]
    fn a_read_only_mount_is_not_recursive_where_that_can_be_said() {
        let options = |can| convert(mount(), can).bind_options.unwrap();
        assert_eq!(options(true).read_only_non_recursive, Some(true));
        assert_eq!(options(false).read_only_non_recursive, None);
    }

    #[test]
    fn propagation() {
        let of = |propagation: MountPropagation| {
            let mount = Mount {
                propagation: propagation.into(),
                ..mount()
            };
            convert(mount, true).bind_options.unwrap().propagation
        };
        use MountBindOptionsPropagationEnum as Docker;
        assert_eq!(of(MountPropagation::PropagationPrivate), None);
        assert_eq!(
            of(MountPropagation::PropagationHostToContainer),
            Some(Docker::RSLAVE)
        );
        assert_eq!(
            of(MountPropagation::PropagationBidirectional),
            Some(Docker::RSHARED)
        );
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let recursive = Mount {
            recursive_read_only: true,
            ..mount()
        };
        let image = Mount {
            image: Some(ImageSpec::default()),
            ..mount()
        };
        for (mount, name) in [
            (recursive, "mounts[3].recursive_read_only"),
            (image, "mounts[3].image"),
        ] {
            let error = check(3, &mount).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(error.code(), tonic::Code::Unimplemented);
        }
    }

    #[test]
    fn relabelling() {
        assert_eq!(bind(0, &mount()).unwrap(), "/var/data:/data:ro,Z");
        let colon = Mount {
            host_path: "/a:b".into(),
            ..mount()
        };
        assert!(bind(0, &colon).is_err());
    }
}
