//! Image references, normalised for the engine and registries.

use std::{fmt, str::FromStr};

use image_reference::{DEFAULT_TAG, ImageReference, InvalidReference, is_image_id};

/// A normalised reference: all spellings of the same image are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    repository: String,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    Tag(String),
    /// A digest identifies the content, so a tag next to it is ignored.
    Digest(String),
}

/// Why a reference is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image reference {text:?}: {reason}")]
pub struct ReferenceError {
    text: String,
    reason: InvalidReference,
}

impl Reference {
    /// The full repository, `docker.io/library/busybox`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag or the digest; the engine takes either in the same parameter.
    pub fn tag_or_digest(&self) -> &str {
        match &self.target {
            Target::Tag(text) | Target::Digest(text) => text,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repository, target } = self;
        match target {
            Target::Tag(tag) => write!(f, "{repository}:{tag}"),
            Target::Digest(digest) => write!(f, "{repository}@{digest}"),
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| ReferenceError {
            text: text.to_owned(),
            reason,
        };
        // By the grammar, the engine's id of an image is a repository `sha256` with a tag.
        if text.strip_prefix("sha256:").is_some_and(is_image_id) {
            return Err(fail(InvalidReference::ImageId));
        }
        let written = ImageReference::parse(text).map_err(fail)?;
        let target = match written.digest() {
            Some(digest) => Target::Digest(digest.to_owned()),
            None => Target::Tag(written.tag().unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self {
            repository: written.repository(),
            target,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn normal(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    #[test]
    fn what_people_write() {
        assert_eq!(normal("busybox"), "docker.io/library/busybox:latest");
        assert_eq!(
            normal("index.docker.io/busybox:1"),
            "docker.io/library/busybox:1"
        );
        assert_eq!(normal("someone/tool:v2"), "docker.io/someone/tool:v2");
        assert_eq!(normal("localhost/x"), "localhost/x:latest");
        assert_eq!(normal("127.0.0.1:5000/a/b:c"), "127.0.0.1:5000/a/b:c");
        assert_eq!(normal("[::1]:5000/a"), "[::1]:5000/a:latest");
        assert_eq!(
            normal(&format!("registry.k8s.io/pause:3.10@{DIGEST}")),
            format!("registry.k8s.io/pause@{DIGEST}")
        );
    }

    #[test]
    fn what_is_no_reference() {
        for bad in [
            "",
            ":tag",
            "@",
            "Upper",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-x",
            "a@sha256:xyz",
            "-a",
            "a..b",
            "http://host/a",
            "host:port/a",
            "a b",
            &DIGEST[7..],
            DIGEST,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(
            domain in proptest::option::of("[a-z]{1,8}\\.[a-z]{2,3}(:[0-9]{1,5})?"),
            path in "[a-z0-9]{1,8}((_|__|-{1,2})[a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,8}(\\.[a-z0-9])?){0,2}",
            tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}"),
            digest in any::<bool>(),
        ) {
            let mut text = domain.map_or(path.clone(), |domain| format!("{domain}/{path}"));
            if let Some(tag) = tag {
                text = format!("{text}:{tag}");
            }
            if digest {
                text = format!("{text}@{DIGEST}");
            }
            let once: Reference = text.parse().unwrap();
            let twice: Reference = once.to_string().parse().unwrap();
            prop_assert_eq!(&once, &twice);
            prop_assert_eq!(once.to_string(), twice.to_string());
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>(), Ok(reference));
            }
        }
    }
}
