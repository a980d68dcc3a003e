//! Verification policy for images on the node (`imagePullCredentialsVerificationPolicy`).

use image_reference::ImageReference;

/// When a pod must present credentials for an image that is already on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// Never.
    NeverVerify,
    /// Only for images that the kubelet pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// For all images except these (`preloadedImagesVerificationAllowlist`).
    NeverVerifyAllowlistedImages(Vec<AllowedImages>),
    /// Always.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// Whether credentials are verified for an image. `repository` is its name without tag and
    /// digest.
    pub fn is_verified(&self, repository: &str, pulled_by_kubelet: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_by_kubelet,
            Self::NeverVerifyAllowlistedImages(allowed) => {
                !allowed.iter().any(|images| images.include(repository))
            }
            Self::AlwaysVerify => true,
        }
    }
}

/// Images by name or by prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedImages {
    /// A name without tag and digest.
    Name(String),
    /// A registry and path with a trailing slash.
    Below(String),
}

impl AllowedImages {
    /// Parses `name` or `registry/path/*`.
    ///
    /// # Errors
    /// The rule that the pattern violates.
    pub fn parse(pattern: &str) -> Result<Self, &'static str> {
        if pattern != pattern.trim() {
            return Err("leading/trailing spaces are not allowed");
        }
        if pattern.is_empty() {
            return Err("the supplied pattern is too short");
        }
        let prefix = pattern.strip_suffix('*').filter(|rest| rest.ends_with('/'));
        if prefix.unwrap_or(pattern).contains('*') {
            return Err("not a valid wildcard pattern, only patterns ending with '/*' are allowed");
        }
        if let Some(prefix) = prefix {
            return match prefix {
                "/" => Err("at least registry hostname is required"),
                prefix => Ok(Self::Below(prefix.to_owned())),
            };
        }
        match ImageReference::parse(pattern) {
            Err(_) => Err("failed to parse as an image name"),
            Ok(reference) if reference.written_repository() != pattern => {
                Err("neither tag nor digest is accepted in an image reference")
            }
            Ok(_) => Ok(Self::Name(pattern.to_owned())),
        }
    }

    fn include(&self, repository: &str) -> bool {
        match self {
            Self::Name(name) => name == repository,
            Self::Below(prefix) => repository.starts_with(prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_asks_where_it_says() {
        let allowed = ["reg.example/base/*", "busybox"]
            .map(|pattern| AllowedImages::parse(pattern).unwrap())
            .to_vec();
        let allowlist = VerificationPolicy::NeverVerifyAllowlistedImages(allowed);
        for (policy, repository, pulled, expected) in [
            (&VerificationPolicy::NeverVerify, "a", true, false),
            (&VerificationPolicy::AlwaysVerify, "a", false, true),
            (&VerificationPolicy::default(), "a", false, false),
            (&VerificationPolicy::default(), "a", true, true),
            (&allowlist, "reg.example/base/a/b", true, false),
            (&allowlist, "reg.example/based", false, true),
            (&allowlist, "busybox", true, false),
            (&allowlist, "busybox2", false, true),
        ] {
            let verified = policy.is_verified(repository, pulled);
            assert_eq!(verified, expected, "{policy:?} {repository}");
        }
    }

    #[test]
    fn patterns_are_names_or_end_in_a_wildcard() {
        for (pattern, rule) in [
            ("", "too short"),
            (" a", "spaces"),
            ("a*", "ending with '/*'"),
            ("*/a/*", "ending with '/*'"),
            ("/*", "registry hostname"),
            ("a:1", "neither tag nor digest"),
            ("A", "failed to parse"),
        ] {
            let error = AllowedImages::parse(pattern).unwrap_err();
            assert!(error.contains(rule), "{pattern:?}: {error}");
        }
    }
}
