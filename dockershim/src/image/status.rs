//! `ImageStatus`.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{ImageSpec, ImageStatusRequest, ImageStatusResponse};

use super::Image;
use crate::{Error, Shim, model::LookupError};

/// The image that the request names; no image, and no error, when there is none.
///
/// # Errors
/// `InvalidArgument` without a name, or with a short id that fits several images;
/// `Unavailable` before the first sync.
pub async fn status(
    shim: &Shim,
    request: ImageStatusRequest,
) -> Result<ImageStatusResponse, Error> {
    shim.require_sync()?;
    let name = named(request.image, "image.image")?;
    let snapshot = shim.images.snapshot();
    let image = match snapshot.find(&name) {
        Ok(image) => Image::clone(image),
        Err(LookupError::Missing) => return Ok(ImageStatusResponse::default()),
        Err(error) => return Err(error.of("image", &name)),
    };
    let mut info = BTreeMap::new();
    if request.verbose {
        let inspect = shim.engine.inspect_image(&image.id).await?;
        let text = serde_json::to_string(&inspect).unwrap_or_default();
        info.insert("info".to_owned(), text);
    }
    Ok(ImageStatusResponse {
        image: Some(image),
        info,
    })
}

/// The name in an image spec.
///
/// # Errors
/// `InvalidArgument` naming `field` when it is empty.
pub fn named(spec: Option<ImageSpec>, field: &str) -> Result<String, Error> {
    spec.map(|spec| spec.image)
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Error::invalid(field, "must not be empty"))
}
