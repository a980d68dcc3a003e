//! Image references as written by users, and normalised for the engine and registries. The grammar
//! is the distribution project's: `[domain/]path[:tag][@digest]`. The default domain is
//! `docker.io`, where a single-component path is in `library/`, and the default tag is `latest`.

use std::{fmt, str::FromStr};

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DEFAULT_DOMAIN: &str = "index.docker.io";
const OFFICIAL_PREFIX: &str = "library/";
const DEFAULT_TAG: &str = "latest";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A normalised reference: all spellings of the same image are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    domain: String,
    path: String,
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
    reason: &'static str,
}

impl Reference {
    /// The full repository, `docker.io/library/busybox`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
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
        let Self { domain, path, .. } = self;
        match &self.target {
            Target::Tag(tag) => write!(f, "{domain}/{path}:{tag}"),
            Target::Digest(digest) => write!(f, "{domain}/{path}@{digest}"),
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
            return Err(fail("the name is empty"));
        }
        if name.len() > MAX_NAME {
            return Err(fail("the name is longer than 255 characters"));
        }
        let is_id = |text: &str| text.len() == 64 && is_hex(text);
        if digest.is_none() && (is_id(name) || (name == "sha256" && tag.is_some_and(is_id))) {
            return Err(fail("it is an image id"));
        }
        let (domain, path) = match name.split_once('/') {
            Some((first, rest)) if looks_like_domain(first) => (first, rest),
            _ => (DEFAULT_DOMAIN, name),
        };
        if !is_domain(domain) {
            return Err(fail("the registry is not a host name or address"));
        }
        if !path.split('/').all(is_path_component) {
            return Err(fail(
                "the path must be lower-case letters and digits, separated by '.', '_', '__', '-' \
                 or '/'",
            ));
        }
        let domain = match domain {
            LEGACY_DEFAULT_DOMAIN => DEFAULT_DOMAIN,
            other => other,
        };
        let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
            format!("{OFFICIAL_PREFIX}{path}")
        } else {
            path.to_owned()
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(fail(
                "the tag must be 1 to 128 letters, digits, '_', '.' or '-'",
            ));
        }
        let target = match digest {
            Some(digest) if !is_digest(digest) => {
                return Err(fail(
                    "the digest must be <algorithm>:<32 or more hexadecimal digits>",
                ));
            }
            Some(digest) => Target::Digest(digest.to_owned()),
            None => Target::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self {
            domain: domain.to_owned(),
            path,
            target,
        })
    }
}

/// The part before the first slash is a registry only if it cannot be a user name.
fn looks_like_domain(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.chars().any(|c| c.is_ascii_uppercase())
}

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

fn is_path_component(component: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes: Vec<char> = component.chars().collect();
    let ends = |c: Option<&char>| c.is_some_and(|c| word(*c));
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .split(|c| word(*c))
            .filter(|run| !run.is_empty())
            .all(|run| matches!(run, ['.'] | ['_'] | ['_', '_']) || run.iter().all(|c| *c == '-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= MAX_TAG
        && tag.starts_with(word)
        && tag.chars().all(|c| word(c) || matches!(c, '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty()
            && algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-' | '_'))
            && hex.len() >= 32
            && is_hex(hex)
    })
}

fn is_hex(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
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
