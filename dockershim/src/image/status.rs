//! `ImageStatus`.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{ImageSpec, ImageStatusRequest, ImageStatusResponse};

use crate::{Error, Shim};

/// The requested image; an empty response, not an error, if it does not exist.
///
/// # Errors
/// `InvalidArgument` without a name, or for a short id that matches several images; the engine's
/// error if it has to be queried.
pub async fn status(
    shim: &Shim,
    request: ImageStatusRequest,
) -> Result<ImageStatusResponse, Error> {
    let name = named(request.image, "image.image")?;
    let image = match shim.images.get_or_inspect(&shim.engine, &name).await {
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
/// `InvalidArgument` naming `field` if it is empty.
pub fn named(spec: Option<ImageSpec>, field: &str) -> Result<String, Error> {
    spec.map(|spec| spec.image)
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Error::invalid(field, "must not be empty"))
}
