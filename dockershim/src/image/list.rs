//! `ListImages`.

use cri_proto::runtime::v1::{ListImagesRequest, ListImagesResponse};

use crate::{Error, Shim, images::Image};

/// The images in the cache: all, or the one in the filter.
///
/// # Errors
/// `Unavailable` before the images have been listed once.
pub fn list(shim: &Shim, request: ListImagesRequest) -> Result<ListImagesResponse, Error> {
    shim.images.require_list()?;
    let snapshot = shim.images.snapshot();
    let wanted = request.filter.and_then(|f| f.image).map(|i| i.image);
    let images = match wanted.filter(|name| !name.is_empty()) {
        None => snapshot.iter().map(Image::clone).collect(),
        Some(name) => snapshot
            .find(&name)
            .map(|known| known.image.clone())
            .into_iter()
            .collect(),
    };
    Ok(ListImagesResponse { images })
}
