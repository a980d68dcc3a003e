//! A container's image mounts, which the engine does not report as CRI does.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{ImageSpec, Mount};
use serde::{Deserialize, Serialize};

/// A container's image mounts, by container path.
pub type ImageMountsByPath = BTreeMap<String, ImageMount>;

/// An image mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMount {
    /// The image as written in the pod spec.
    pub image: String,
    /// The image's id.
    pub image_ref: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    /// The path inside the image; empty for its root.
    pub sub_path: String,
}

/// The label that stores `mounts`; `None` if there are none.
pub fn label(mounts: &ImageMountsByPath) -> Option<(String, String)> {
    let json = || serde_json::json!(mounts).to_string();
    (!mounts.is_empty()).then(|| (super::IMAGE_MOUNTS.to_owned(), json()))
}

/// Parses the label's value.
pub fn from_label(json: &str) -> ImageMountsByPath {
    serde_json::from_str(json).unwrap_or_default()
}

impl ImageMount {
    /// The mount as CRI reports it.
    pub fn status(&self, container_path: String) -> Mount {
        Mount {
            container_path,
            readonly: true,
            image: Some(ImageSpec {
                image: self.image.clone(),
                image_ref: self.image_ref.clone(),
                ..Default::default()
            }),
            image_sub_path: self.sub_path.clone(),
            ..Default::default()
        }
    }
}
