//! `ContainerStatus`.

use std::{collections::BTreeMap, sync::Arc};

use cri_proto::runtime::v1::{ContainerStatus, ContainerStatusRequest, ContainerStatusResponse};

use crate::{
    Error, Shim,
    images::{ImageSnapshot, Reference, convert::image_ref},
    model::Container,
};

/// Answers from the model.
///
/// # Errors
/// `NotFound` if there is no such container, `Unavailable` before the first sync.
pub async fn status(
    shim: &Shim,
    request: ContainerStatusRequest,
) -> Result<ContainerStatusResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    let mut info = BTreeMap::new();
    if request.verbose {
        let text = serde_json::json!({ "sandboxID": container.sandbox_id, "pid": container.pid });
        info.insert("info".to_owned(), text.to_string());
    }
    Ok(ContainerStatusResponse {
        status: Some(status_of(&container, &shim.images.snapshot())),
        info,
    })
}

/// Finds the container with this id or unique prefix; inspects it if its record is provisional.
///
/// # Errors
/// `NotFound` if there is no such container, `Unavailable` before the first sync.
pub async fn find(shim: &Shim, id: &str) -> Result<Arc<Container>, Error> {
    shim.require_sync()?;
    let look = || {
        let found = shim.model.snapshot().container(id);
        found.map_err(|error| error.of("container", id))
    };
    let container = look()?;
    if !container.provisional {
        return Ok(container);
    }
    shim.inspector.refresh(container.id()).await?;
    look()
}

/// The container's status, with its image's current names.
pub(crate) fn status_of(container: &Container, images: &ImageSnapshot) -> ContainerStatus {
    let mut status = container.status.clone();
    name_image(&mut status, images);
    status
}

/// Fills in the fields that depend on the current images. A container is created from an image id,
/// but users expect the name that they wrote, as long as the image has it.
fn name_image(status: &mut ContainerStatus, images: &ImageSnapshot) {
    let Some(known) = images.by_id(&status.image_id) else {
        status.image_ref.clone_from(&status.image_id);
        return;
    };
    let image = &known.image;
    status.image_ref = image_ref(image).to_owned();
    let spec = status.image.get_or_insert_default();
    let wanted: Option<Reference> = spec.user_specified_image.parse().ok();
    let mut names = image.repo_tags.iter().chain(&image.repo_digests);
    let written = names.find(|name| wanted.is_some() && name.parse().ok() == wanted);
    if let Some(name) = written.or(image.repo_tags.first()) {
        spec.image.clone_from(name);
    }
}
