//! Image mounts (`Mount.image`): done by the engine if its API supports them, else by
//! [`ImageMounts`](crate::images::ImageMounts), which mounts the image's layers. A label stores what
//! the engine does not.

use std::{
    path::{Component, Path},
    sync::Arc,
};

use bollard::models::{
    Mount as DockerMount, MountBindOptions, MountBindOptionsPropagationEnum, MountImageOptions,
    MountType,
};
use cri_proto::runtime::v1::Mount;

use crate::{
    Error, Shim,
    engine::{Cause, Connection},
    labels::image_mounts::{ImageMount, ImageMountsByPath},
    model::{Container, Snapshot},
};

/// An abbreviated id of this length is still unique.
const SHORTEST_ID: usize = 12;

/// Prepares the image mount `field`, for the engine and for the label. `others` are the container's
/// other image mounts.
///
/// # Errors
/// `InvalidArgument` or `Unsupported` naming the field, `NotFound` for the image.
pub async fn prepare(
    shim: &Shim,
    engine: &Connection,
    field: &str,
    mount: Mount,
    others: &ImageMountsByPath,
) -> Result<(DockerMount, ImageMount), Error> {
    let spec = mount.image.unwrap_or_default();
    if !mount.readonly {
        let reason = "images can only be mounted read-only; set it to true";
        return Err(Error::invalid(format!("{field}.readonly"), reason));
    }
    let sub_path = mount.image_sub_path;
    let relative = Path::new(&sub_path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !relative {
        let reason = format!("{sub_path:?} is not a path inside the image");
        return Err(Error::invalid(format!("{field}.image_sub_path"), reason));
    }
    let known = shim
        .images
        .get_or_inspect(&shim.engine, &spec.image)
        .await?;
    let image = &known.image;
    let written = match spec.user_specified_image {
        none if none.is_empty() => spec.image,
        some => some,
    };
    let remembered = ImageMount {
        image: written,
        image_ref: image.id.clone(),
        sub_path: sub_path.clone(),
    };
    let docker = if engine.serves(1, 48) {
        let same = others.values().filter(|other| other.image_ref == image.id);
        DockerMount {
            typ: Some(MountType::IMAGE),
            source: Some(engine_source(&image.id, same.count())),
            target: Some(mount.container_path),
            image_options: Some(MountImageOptions {
                subpath: Some(sub_path).filter(|path| !path.is_empty()),
            }),
            ..Default::default()
        }
    } else {
        let inspect = shim.engine.inspect_image(&image.id).await?;
        let field = format!("{field}.image");
        let source = shim.image_mounts.mount(inspect, &sub_path, &field).await?;
        DockerMount {
            typ: Some(MountType::BIND),
            source: Some(source.to_string_lossy().into_owned()),
            target: Some(mount.container_path),
            read_only: Some(true),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                ..Default::default()
            }),
            ..Default::default()
        }
    };
    Ok((docker, remembered))
}

/// The engine's name for the image `id`. The engine refuses two mounts with the same source in one
/// container, so the id is shortened for each of the `others` of the same image.
fn engine_source(id: &str, others: usize) -> String {
    match id.rsplit_once(':') {
        Some((_, hex)) if others > 0 => {
            let length = hex.len().saturating_sub(others).max(SHORTEST_ID);
            hex.get(..length).unwrap_or(hex).to_owned()
        }
        _ => id.to_owned(),
    }
}

/// Whether `mount` is an image mount.
pub fn is_image_mount(mount: &Mount) -> bool {
    let image = mount.image.as_ref();
    image.is_some_and(|image| !image.image.is_empty())
}

/// A container that mounts the image with this full id.
pub fn user_of<'a>(image: &str, snapshot: &'a Snapshot) -> Option<&'a Arc<Container>> {
    let mounts = |container: &&Arc<Container>| {
        let mut mounts = container.image_mounts.values();
        mounts.any(|mount| mount.image_ref == image)
    };
    snapshot.containers().find(mounts)
}

/// A mount of an image's sub-path by the engine, which checks the sub-path only at start.
#[derive(Debug)]
pub struct SubPathMount {
    field: String,
    container_path: String,
    sub_path: String,
}

/// The image sub-paths that `engine` itself mounts.
pub fn engine_sub_paths(engine: &Connection, mounts: &[Mount]) -> Vec<SubPathMount> {
    let has_sub_path = |mount: &Mount| is_image_mount(mount) && !mount.image_sub_path.is_empty();
    mounts
        .iter()
        .enumerate()
        .filter(|(_, mount)| engine.serves(1, 48) && has_sub_path(mount))
        .map(|(index, mount)| SubPathMount {
            field: format!("config.mounts[{index}].image_sub_path"),
            container_path: mount.container_path.clone(),
            sub_path: mount.image_sub_path.clone(),
        })
        .collect()
}

/// Checks that `sub_paths` exist in the container that was created with them.
///
/// # Errors
/// `InvalidArgument` naming the field of a missing one, or the engine's error.
pub async fn check_sub_paths(
    shim: &Shim,
    container_id: &str,
    sub_paths: &[SubPathMount],
) -> Result<(), Error> {
    for mount in sub_paths {
        let path = &mount.container_path;
        let Err(error) = shim.engine.stat_in_container(container_id, path).await else {
            continue;
        };
        return Err(match error.cause {
            Cause::NotFound(_) | Cause::Refused { .. } => Error::invalid(
                &mount.field,
                format!("the engine cannot find {:?} in the image", mount.sub_path),
            ),
            _ => error.into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_of_one_image_has_a_name_of_its_own() {
        let id = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let names: Vec<_> = (0..3).map(|others| engine_source(&id, others)).collect();
        assert_eq!(names[0], id);
        assert_eq!((names[1].len(), names[2].len()), (63, 62));
        assert!(id.ends_with(&format!("{}f", names[1])));
        assert_eq!(engine_source(&id, 1000).len(), SHORTEST_ID);
        assert_eq!(engine_source("sha256:short", 1), "short");
    }
}
