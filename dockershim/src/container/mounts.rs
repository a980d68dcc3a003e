//! Mounts in the engine's terms.

use bollard::models::{
    HostConfig, Mount as DockerMount, MountBindOptions, MountBindOptionsPropagationEnum, MountType,
};
use cri_proto::runtime::v1::{Mount, MountPropagation};

use super::image_mounts;
use crate::{Error, Shim, engine::Connection, labels::image_mounts::ImageMountsByPath};

/// The first kernel version with recursively read-only mounts.
const RECURSIVE_KERNEL: (u32, u32) = (5, 12);

/// Whether the engine, its kernel and the runtime of this handler support recursively read-only
/// mounts.
pub fn can_be_recursively_read_only(engine: &Connection, handler: &str) -> bool {
    engine.serves(1, 44)
        && kernel(engine) >= Some(RECURSIVE_KERNEL)
        && engine
            .info
            .runtimes
            .can_mount_recursively_read_only(handler)
}

fn kernel(engine: &Connection) -> Option<(u32, u32)> {
    let release = engine.info.kernel.as_deref()?;
    let mut parts = release.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Adds mounts to the engine's create request; returns the image mounts. A missing host path is
/// created as a directory.
///
/// `relabel` says that the container has its own SELinux label, which mounts can request.
///
/// # Errors
/// `InvalidArgument` or `Unsupported` naming the mount's field; `NotFound` for an image.
pub(super) async fn apply_mounts(
    shim: &Shim,
    mounts: Vec<Mount>,
    relabel: bool,
    engine: &Connection,
    handler: &str,
    host: &mut HostConfig,
) -> Result<ImageMountsByPath, Error> {
    let mut docker = Vec::with_capacity(mounts.len());
    let mut binds = Vec::new();
    let mut images = ImageMountsByPath::new();
    let can_recurse = can_be_recursively_read_only(engine, handler);
    for (index, mount) in mounts.iter().enumerate() {
        check(index, mount, can_recurse)?;
    }
    for (index, mount) in mounts.into_iter().enumerate() {
        if image_mounts::is_image_mount(&mount) {
            let field = format!("config.mounts[{index}]");
            let path = mount.container_path.clone();
            let (mount, image) = image_mounts::prepare(shim, engine, &field, mount, &images)
                .await
                .map_err(Error::of_image_mount)?;
            docker.push(mount);
            images.insert(path, image);
            continue;
        }
        make_source(&mount.host_path).await?;
        if relabel && mount.selinux_relabel {
            binds.push(bind(index, &mount)?);
        } else {
            // Before API 1.44, read-only mounts were never recursive and the option did not exist.
            docker.push(convert(mount, engine.serves(1, 44)));
        }
    }
    host.mounts = Some(docker);
    host.binds = Some(binds);
    Ok(images)
}

fn check(index: usize, mount: &Mount, recursive: bool) -> Result<(), Error> {
    let field = |name: &str| format!("config.mounts[{index}].{name}");
    let lacking = "not supported by the Docker engine";
    for (name, asked) in [
        ("uidMappings", !mount.uid_mappings.is_empty()),
        ("gidMappings", !mount.gid_mappings.is_empty()),
        ("mount_options", !mount.mount_options.is_empty()),
    ] {
        if asked {
            return Err(Error::unsupported(field(name), lacking));
        }
    }
    if mount.recursive_read_only {
        let name = field("recursive_read_only");
        if !mount.readonly {
            return Err(Error::invalid(name, "requires readonly"));
        }
        if mount.propagation() != MountPropagation::PropagationPrivate {
            return Err(Error::invalid(
                name,
                "requires propagation PROPAGATION_PRIVATE",
            ));
        }
        if !recursive {
            let reason = "requires a Docker engine of API 1.44 (Docker 25) and Linux 5.12 or newer";
            return Err(Error::unsupported(name, reason));
        }
    }
    let of_image = image_mounts::is_image_mount(mount);
    for (name, path) in [
        ("host_path", &mount.host_path),
        ("container_path", &mount.container_path),
    ] {
        let needed = !(of_image && name == "host_path");
        if needed && !path.starts_with('/') {
            return Err(Error::invalid(
                field(name),
                format!("{path:?} is not an absolute path"),
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
        action: "create the source of a mount",
        path: path.into(),
        source,
    })
}

fn convert(mount: Mount, can_say_non_recursive: bool) -> DockerMount {
    let propagation = match mount.propagation() {
        // The engine requires it.
        _ if mount.recursive_read_only => Some(MountBindOptionsPropagationEnum::RPRIVATE),
        // Unset, because the engine must use rslave for its own directories, which it does by
        // default.
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
            read_only_non_recursive: (mount.readonly
                && !mount.recursive_read_only
                && can_say_non_recursive)
                .then_some(true),
            read_only_force_recursive: mount.recursive_read_only.then_some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A bind string for a relabelled mount: the engine relabels only mounts in this older form, where
/// `:` separates the fields.
fn bind(index: usize, mount: &Mount) -> Result<String, Error> {
    let (source, target) = (&mount.host_path, &mount.container_path);
    if source.contains(':') || target.contains(':') {
        return Err(Error::unsupported(
            format!("config.mounts[{index}].selinux_relabel"),
            "the engine cannot relabel a path that contains ':'",
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

#[cfg(test)]
mod tests {
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
    fn what_the_engine_has_no_means_for_is_refused_by_name() {
        let mapping = || vec![cri_proto::runtime::v1::IdMapping::default()];
        let uids = Mount {
            uid_mappings: mapping(),
            ..mount()
        };
        let gids = Mount {
            gid_mappings: mapping(),
            ..mount()
        };
        for (mount, field) in [(uids, "uidMappings"), (gids, "gidMappings")] {
            let error = check(2, &mount, true).unwrap_err();
            assert_eq!(error.code(), tonic::Code::Unimplemented);
            let field = format!("config.mounts[2].{field}");
            assert!(error.to_string().contains(&field), "{error}");
        }
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
    fn a_recursive_read_only_mount_is_read_only_private_and_possible() {
        let recursive = Mount {
            recursive_read_only: true,
            ..mount()
        };
        check(3, &recursive, true).unwrap();
        let options = convert(recursive.clone(), true).bind_options.unwrap();
        assert_eq!(options.read_only_force_recursive, Some(true));
        assert_eq!(options.read_only_non_recursive, None);
        let writable = Mount {
            readonly: false,
            ..recursive.clone()
        };
        let shared = Mount {
            propagation: MountPropagation::PropagationBidirectional.into(),
            ..recursive.clone()
        };
        for (mount, possible, code) in [
            (writable, true, tonic::Code::InvalidArgument),
            (shared, true, tonic::Code::InvalidArgument),
            (recursive, false, tonic::Code::Unimplemented),
        ] {
            let error = check(3, &mount, possible).unwrap_err();
            assert_eq!(error.code(), code);
            let text = error.to_string();
            assert!(text.contains("mounts[3].recursive_read_only"), "{text}");
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
