//! `ImageStatus`.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{ImageSpec, ImageStatusRequest, ImageStatusResponse};

use crate::{Error, Shim};

/// The image that the request names; no image, and no error, when there is none.
///
/// # Errors
/// `InvalidArgument` without a name, or with a short id that fits several images;
/// what the engine says where it has to be asked.
pub async fn status(
    shim: &Shim,
    request: ImageStatusRequest,
) -> Result<ImageStatusResponse, Error> {
    let name = named(request.image, "image.image")?;
    let image = match shim.images.learn(&shim.engine, &name).await {
        Ok(known) => known.image.clone(),
        Err(Error::NotFound { .. }) => return Ok(ImageStatusResponse::default()),
        Err(error) => return Err(error),
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
