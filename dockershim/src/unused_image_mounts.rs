//! Unmounts images that no container uses any more.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    images::ImageMounts,
    model::{Container, Model},
};

/// Unmounts the images that no container of `model` uses.
pub async fn unmount_unused(images: &ImageMounts, model: &Arc<Model>) {
    let model = Arc::clone(model);
    let is_used = move |directory: &Path| {
        let snapshot = model.snapshot();
        snapshot.containers().any(|c| uses(c, directory))
    };
    images.retain(is_used).await;
}

/// A mount directory's name is the image's id without its prefix.
fn uses(container: &Container, directory: &Path) -> bool {
    let name = PathBuf::from(directory.file_name().unwrap_or_default());
    container
        .image_mounts
        .values()
        .any(|mount| mount.image_ref.rsplit(':').next() == name.to_str())
}
