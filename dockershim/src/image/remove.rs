//! `RemoveImage`.

use bollard::models::ContainerSummary;
use cri_proto::runtime::v1::{RemoveImageRequest, RemoveImageResponse};

use super::status::named;
use crate::{Error, Shim, container::image_mounts, images::Image};

/// Removes the image with all its names. Succeeds if the image does not exist.
///
/// # Errors
/// `FailedPrecondition` if a container uses or mounts it; `Unavailable` before the first sync.
pub async fn remove(
    shim: &Shim,
    request: RemoveImageRequest,
) -> Result<RemoveImageResponse, Error> {
    shim.require_sync()?;
    let name = named(request.image, "image.image")?;
    let image = match shim.images.get_or_inspect(&shim.engine, &name).await {
        Ok(known) => known.image.clone(),
        Err(Error::NotFound { .. }) => return Ok(RemoveImageResponse {}),
        Err(error) => return Err(error),
    };
    if let Some(user) = image_mounts::user_of(&image.id, &shim.model.snapshot()) {
        // The engine may not know about the mount, and would remove the files that the container
        // uses.
        return Err(Error::FailedPrecondition(format!(
            "image {} is mounted in container {}",
            image.id,
            user.id()
        )));
    }
    // With two concurrent removals, the engine fails the second while the first continues.
    let removal = shim.removals.of(&image.id);
    let _one_at_a_time = removal.lock().await;
    if shim.images.snapshot().by_id(&image.id).is_none() {
        return Ok(RemoveImageResponse {});
    }
    // The engine refuses only the removal of the last name, when the others are already gone.
    let users = shim.engine.list_containers_of_image(&image.id).await?;
    let is_user = |user: &&ContainerSummary| user.image_id.as_ref() == Some(&image.id);
    if let Some(user) = users.iter().find(is_user) {
        return Err(Error::FailedPrecondition(format!(
            "image {} is used by container {}",
            image.id,
            user.id.as_deref().unwrap_or_default()
        )));
    }
    let result = remove_names(shim, &image).await;
    shim.images.refresh(&shim.engine).await?;
    // Another client may have removed it meanwhile.
    if shim.images.snapshot().by_id(&image.id).is_some() {
        result?;
    }
    tracing::info!(image = image.id, tags = ?image.repo_tags, "removed the image");
    Ok(RemoveImageResponse {})
}

/// The engine removes the image with its last name, so later names may be gone already.
async fn remove_names(shim: &Shim, image: &Image) -> Result<(), Error> {
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    for name in names.chain([&image.id]) {
        match shim.engine.remove_image(name).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
