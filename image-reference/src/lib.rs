//! Image references in the grammar of the distribution project: `[domain/]path[:tag][@digest]`.

#![forbid(unsafe_code)]

/// The tag of a reference without tag and digest.
pub const DEFAULT_TAG: &str = "latest";

/// Maximum length of a name without tag and digest.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// The registry of names without one, and its older name.
const DEFAULT_REGISTRY: &str = "docker.io";
const LEGACY_DEFAULT_REGISTRY: &str = "index.docker.io";

/// Why a text is not an image reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// The name is empty.
    #[error("the name is empty")]
    EmptyName,
    /// The name is too long.
    #[error("the name is longer than 255 characters")]
    LongName,
    /// The name has the form of an image's id.
    #[error("it is an image id")]
    ImageId,
    /// The registry is invalid.
    #[error("the registry is not a host name or address")]
    Registry,
    /// The path is invalid.
    #[error(
        "the path must be lower-case letters and digits, separated by '.', '_', '__', '-' or '/'"
    )]
    Path,
    /// The tag is invalid.
    #[error("the tag must be 1 to 128 letters, digits, '_', '.' or '-'")]
    Tag,
    /// The digest is invalid.
    #[error("the digest must be <algorithm>:<32 or more hexadecimal digits>")]
    Digest,
}

/// An image reference as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageReference<'a> {
    text: &'a str,
    domain: Option<&'a str>,
    path: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl<'a> ImageReference<'a> {
    /// Parses an image reference.
    ///
    /// # Errors
    /// The text is not a valid reference.
    pub fn parse(text: &'a str) -> Result<Self, InvalidReference> {
        let (name_and_tag, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        // A colon after the last slash separates the tag; an earlier one separates the port.
        let (name, tag) = match name_and_tag.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name_and_tag, None),
        };
        if name.is_empty() {
            return Err(InvalidReference::EmptyName);
        }
        if name.len() > MAX_NAME {
            return Err(InvalidReference::LongName);
        }
        if digest.is_none() && is_image_id(name) {
            return Err(InvalidReference::ImageId);
        }
        let (domain, path) = match name.split_once('/') {
            Some((first, path)) if looks_like_domain(first) => (Some(first), path),
            _ => (None, name),
        };
        if !domain.is_none_or(is_domain) {
            return Err(InvalidReference::Registry);
        }
        if !path.split('/').all(is_path_component) {
            return Err(InvalidReference::Path);
        }
        if !tag.is_none_or(is_tag) {
            return Err(InvalidReference::Tag);
        }
        if !digest.is_none_or(is_digest) {
            return Err(InvalidReference::Digest);
        }
        Ok(Self {
            text,
            domain,
            path,
            tag,
            digest,
        })
    }

    /// The tag as written.
    pub const fn tag(&self) -> Option<&'a str> {
        self.tag
    }

    /// The digest. It identifies the content, whatever the tag beside it is.
    pub const fn digest(&self) -> Option<&'a str> {
        self.digest
    }

    /// The reference as written, with the tag `latest` if it has neither tag nor digest.
    pub fn with_default_tag(&self) -> String {
        match (self.tag, self.digest) {
            (None, None) => format!("{}:{DEFAULT_TAG}", self.text),
            _ => self.text.to_owned(),
        }
    }

    /// The repository as written, without tag and digest.
    pub fn written_repository(&self) -> &'a str {
        let length = self.domain.map_or(0, |domain| domain.len() + 1) + self.path.len();
        &self.text[..length]
    }

    /// The full name of the repository, `docker.io/library/busybox`: short names are completed with
    /// the default registry and `library/`. Credentials are looked up by this name.
    pub fn repository(&self) -> String {
        let path = self.path;
        match self.domain {
            Some(domain) if ![DEFAULT_REGISTRY, LEGACY_DEFAULT_REGISTRY].contains(&domain) => {
                format!("{domain}/{path}")
            }
            _ if path.contains('/') => format!("{DEFAULT_REGISTRY}/{path}"),
            _ => format!("{DEFAULT_REGISTRY}/library/{path}"),
        }
    }

    /// Whether both refer to the same image, in short or full form.
    pub fn is_same(&self, other: &Self) -> bool {
        let rest = |reference: &Self| {
            let tagged = reference.with_default_tag();
            tagged[reference.written_repository().len()..].to_owned()
        };
        self.repository() == other.repository() && rest(self) == rest(other)
    }
}

/// Whether `text` is an image's id without its algorithm: 64 hexadecimal digits.
pub fn is_image_id(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

/// The part before the first slash is a registry only if it cannot be a user name.
fn looks_like_domain(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.chars().any(|c| c.is_ascii_uppercase())
}

/// Whether `domain` is a host name or an address, with or without a port.
fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((address, after)) => {
            let v6 = !address.is_empty()
                && address
                    .chars()
                    .all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'));
            return v6 && (after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
        }
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.chars().all(|c| c.is_ascii_digit())
}

/// Checks for runs of lower-case letters and digits between separators: `.`, `_`, `__` or dashes.
fn is_path_component(text: &str) -> bool {
    let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends_well = |b: Option<&u8>| b.is_some_and(|b| is_alphanumeric(*b));
    if !ends_well(bytes.first()) || !ends_well(bytes.last()) {
        return false;
    }
    text.split(|c: char| c.is_ascii() && is_alphanumeric(c as u8))
        .filter(|separator| !separator.is_empty())
        .all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
        })
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'-' | b'_'))
            && hex.len() >= 32
            && is_hex(hex)
    })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_default_tag(text: &str) -> Result<String, InvalidReference> {
        ImageReference::parse(text).map(|reference| reference.with_default_tag())
    }

    #[test]
    fn only_a_bare_name_gets_the_default_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (reference, full) in [
            ("busybox".to_owned(), "busybox:latest".to_owned()),
            ("busybox:1".to_owned(), "busybox:1".to_owned()),
            (
                "localhost:5000/a/b".to_owned(),
                "localhost:5000/a/b:latest".to_owned(),
            ),
            (
                "reg.example/a__b".to_owned(),
                "reg.example/a__b:latest".to_owned(),
            ),
            (format!("a@{digest}"), format!("a@{digest}")),
            (format!("a:1@{digest}"), format!("a:1@{digest}")),
        ] {
            assert_eq!(with_default_tag(&reference), Ok(full));
        }
    }

    #[test]
    fn short_names_are_of_the_default_registry() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (reference, repository, written) in [
            ("busybox", "docker.io/library/busybox", "busybox"),
            ("a/b:1", "docker.io/a/b", "a/b"),
            (
                "docker.io/busybox:1",
                "docker.io/library/busybox",
                "docker.io/busybox",
            ),
            (
                "index.docker.io/a/b",
                "docker.io/a/b",
                "index.docker.io/a/b",
            ),
            ("localhost/a", "localhost/a", "localhost/a"),
            (
                "reg.example:5000/a/b",
                "reg.example:5000/a/b",
                "reg.example:5000/a/b",
            ),
            (
                &format!("reg.example/a:1@{digest}"),
                "reg.example/a",
                "reg.example/a",
            ),
        ] {
            let parsed = ImageReference::parse(reference).unwrap();
            assert_eq!(parsed.repository(), repository);
            assert_eq!(parsed.written_repository(), written);
        }
        let same = |a, b| {
            let parse = |text| ImageReference::parse(text).unwrap();
            parse(a).is_same(&parse(b))
        };
        assert!(same("busybox", "docker.io/library/busybox:latest"));
        assert!(!same("busybox", "busybox:1"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let id = "a".repeat(64);
        for reference in [
            "",
            "Busybox",
            "a//b",
            "a:",
            "a:b:c",
            "-a",
            "a-",
            "a@sha256:1",
            "a b",
            ":5000/a",
            "a..b",
            id.as_str(),
        ] {
            assert!(with_default_tag(reference).is_err(), "{reference}");
        }
    }

    #[test]
    fn registries_and_digests_are_those_that_runtimes_accept() {
        let hex = "a".repeat(64);
        for reference in [
            "[::1]/a",
            "[::1]:5000/a",
            "reg.example:99999/a",
            &format!("{hex}@sha256:{hex}"),
        ] {
            assert!(with_default_tag(reference).is_ok(), "{reference}");
        }
        for reference in [
            "a..b/c",
            "-a.b/c",
            "a-.b/c",
            "[x.y]/a",
            "reg.example:/a",
            "reg.example:+5/a",
            &format!("a@sha256:{}", hex.to_uppercase()),
            &format!("a@2sha:{hex}"),
        ] {
            assert!(with_default_tag(reference).is_err(), "{reference}");
        }
    }

    proptest! {
        #[test]
        fn a_full_name_stays_as_it_is(
            name in "([a-z0-9]{1,8}\\.example(:[0-9]{1,4})?/)?[a-z0-9]{1,8}([._-][a-z0-9]{1,8}){0,2}",
            tag in "[A-Za-z0-9_][A-Za-z0-9_.-]{0,16}",
        ) {
            let full = format!("{name}:{tag}");
            prop_assert_eq!(with_default_tag(&full), Ok(full.clone()));
            prop_assert_eq!(with_default_tag(&name), Ok(format!("{name}:latest")));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,80}") {
            if let Ok(full) = with_default_tag(&text) {
                prop_assert_eq!(with_default_tag(&full), Ok(full.clone()));
            }
        }
    }
}
