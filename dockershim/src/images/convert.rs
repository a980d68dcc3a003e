//! Conversion of the engine's images to CRI's types.

use bollard::models::{ImageInspect, ImageSummary};
use cri_proto::runtime::v1::Int64Value;

use super::Image;

/// The engine's placeholder for a missing name.
const NONE: &str = "<none>";

/// An image's configured user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    /// Not set, which means root.
    Unset,
    /// A uid.
    Uid(i64),
    /// A name, to be looked up in the image.
    Name(String),
}

impl ImageUser {
    /// Parses `user[:group]`; an unknown value is reported as not set.
    pub fn parse_known(text: Option<&str>) -> Self {
        text.map_or(Self::Unset, Self::parse)
    }

    /// Parses `user[:group]`.
    pub fn parse(text: &str) -> Self {
        let user = text.split(':').next().unwrap_or_default();
        match user.parse() {
            _ if user.is_empty() => Self::Unset,
            Ok(uid) => Self::Uid(uid),
            Err(_) => Self::Name(user.to_owned()),
        }
    }
}

/// The user in an inspected image's configuration.
pub fn configured_user(inspect: &ImageInspect) -> &str {
    let config = inspect.config.as_ref();
    config.and_then(|c| c.user.as_deref()).unwrap_or_default()
}

/// Converts an entry of the engine's list.
pub fn from_summary(summary: ImageSummary, user: ImageUser) -> Image {
    let (tags, digests) = (summary.repo_tags, summary.repo_digests);
    image(summary.id, tags, digests, summary.size, user)
}

/// Converts an inspect; `None` if it has no id.
pub fn from_inspect(inspect: ImageInspect, user: ImageUser) -> Option<Image> {
    let tags = inspect.repo_tags.unwrap_or_default();
    let digests = inspect.repo_digests.unwrap_or_default();
    let size = inspect.size.unwrap_or_default();
    let id = inspect.id.filter(|id| !id.is_empty())?;
    Some(image(id, tags, digests, size, user))
}

fn image(id: String, tags: Vec<String>, digests: Vec<String>, size: i64, user: ImageUser) -> Image {
    let named = |names: Vec<String>| names.into_iter().filter(|n| !n.contains(NONE));
    let (uid, username) = match user {
        ImageUser::Unset => (None, String::new()),
        ImageUser::Uid(value) => (Some(Int64Value { value }), String::new()),
        ImageUser::Name(name) => (None, name),
    };
    Image {
        id,
        // With containerd's image store, the engine lists images pulled by digest as tags.
        repo_tags: named(tags).filter(|tag| !tag.contains('@')).collect(),
        repo_digests: named(digests).collect(),
        size: u64::try_from(size).unwrap_or_default(),
        uid,
        username,
        spec: None,
        pinned: false,
    }
}

/// The `image_ref` that containers report: the digest if the image came from a registry, else the
/// id.
pub fn image_ref(image: &Image) -> &str {
    image.repo_digests.first().unwrap_or(&image.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users() {
        assert_eq!(ImageUser::parse(""), ImageUser::Unset);
        assert_eq!(ImageUser::parse(":0"), ImageUser::Unset);
        assert_eq!(ImageUser::parse("65535:65535"), ImageUser::Uid(65535));
        assert_eq!(
            ImageUser::parse("nobody:nogroup"),
            ImageUser::Name("nobody".into())
        );
    }

    #[test]
    fn what_was_pulled_by_digest_has_no_tag() {
        let digest = format!("app@sha256:{}", "0".repeat(64));
        let summary = ImageSummary {
            repo_tags: vec![digest.clone(), "app:v1".into()],
            repo_digests: vec![digest.clone()],
            ..Default::default()
        };
        let image = from_summary(summary, ImageUser::Unset);
        assert_eq!(image.repo_tags, ["app:v1"]);
        assert_eq!(image.repo_digests, [digest]);
    }

    #[test]
    fn a_dangling_image_has_no_names() {
        let summary = ImageSummary {
            repo_tags: vec!["<none>:<none>".into()],
            repo_digests: vec!["app@<none>".into()],
            ..Default::default()
        };
        let image = from_summary(summary, ImageUser::Unset);
        assert!(image.repo_tags.is_empty() && image.repo_digests.is_empty());
    }
}
