//! Selection of the credentials for a repository.

use std::collections::BTreeMap;

use tracing::warn;

use crate::{
    Credential,
    docker_config::DockerConfig,
    registry_url::{self, RegistryUrl},
};

/// Name of the default registry in docker configurations.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Credentials, or what was made of them, by registry, optionally with a path prefix.
#[derive(Debug)]
pub struct Keyring<T = Credential> {
    by_registry: BTreeMap<String, Vec<T>>,
}

impl<T> Default for Keyring<T> {
    fn default() -> Self {
        Self {
            by_registry: BTreeMap::new(),
        }
    }
}

impl<T: Clone> Keyring<T> {
    /// Adds what `of` makes of each credential of a docker configuration.
    pub fn add(&mut self, config: DockerConfig, of: impl Fn(Credential) -> T) {
        for (registry, credential) in config {
            let Some(key) = key(&registry) else {
                warn!(
                    registry,
                    "ignoring a Docker configuration entry that is not a registry"
                );
                continue;
            };
            let entries = self.by_registry.entry(key).or_default();
            entries.push(of(credential));
        }
    }

    /// All credentials that match a repository, longer paths before shorter ones. A registry may
    /// have several, so that a password can be rotated without a gap.
    pub fn lookup(&self, repository: &str) -> Vec<T> {
        let mut found = Vec::new();
        for (key, credentials) in self.by_registry.iter().rev() {
            if registry_url::covers(key, repository) {
                found.extend_from_slice(credentials);
            }
        }
        if found.is_empty()
            && is_in_default_registry(repository)
            && let Some(credentials) = self.by_registry.get(DEFAULT_REGISTRY)
        {
            found.extend_from_slice(credentials);
        }
        found
    }
}

/// The registry of an entry without scheme and API version: docker treats `https://host/v1/` and
/// `host` alike.
fn key(registry: &str) -> Option<String> {
    let rest = registry
        .strip_prefix("https://")
        .or_else(|| registry.strip_prefix("http://"))
        .unwrap_or(registry);
    let RegistryUrl { host, path } = RegistryUrl::parse(rest).ok()?;
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path,
    };
    Some(match path {
        "" | "/" => host.to_owned(),
        path => format!("{host}{path}"),
    })
}

fn is_in_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some(("", _)) => false,
        Some((first, _)) => {
            matches!(first, "docker.io" | "index.docker.io") || !first.contains(['.', ':'])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// User names that a keyring with these registries finds.
    fn users(registries: &[&str], repository: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        for registry in registries {
            let credential = Credential {
                username: (*registry).to_owned(),
                ..Credential::default()
            };
            let config = DockerConfig::from([((*registry).to_owned(), credential)]);
            keyring.add(config, |credential| credential.username);
        }
        keyring.lookup(repository)
    }

    #[test]
    fn longer_paths_come_first() {
        for (registries, repository, expected) in [
            (
                &["a.example", "a.example/b/c", "a.example/b", "c.example"][..],
                "a.example/b/c/d",
                &["a.example/b/c", "a.example/b", "a.example"][..],
            ),
            (
                &["*.example", "a.example/b"],
                "a.example/b",
                &["a.example/b", "*.example"],
            ),
            (&["*.example", "a.example"], "b.example/x", &["*.example"]),
            (
                &[
                    "https://a.example/v1/",
                    "http://a.example/v2/b",
                    "a.example",
                ],
                "a.example/b",
                &[
                    "http://a.example/v2/b",
                    "https://a.example/v1/",
                    "a.example",
                ],
            ),
            (&["a.example:5000"], "a.example/b", &[]),
            (&["a b"], "a.example/b", &[]),
        ] {
            assert_eq!(users(registries, repository), expected, "{repository}");
        }
    }

    #[test]
    fn the_default_registry_has_names_of_its_own() {
        let hub = "https://index.docker.io/v1/";
        for (registries, repository, expected) in [
            (&[hub][..], "docker.io/library/busybox", &[hub][..]),
            (&[hub], "docker.io/a/b", &[hub]),
            (&[hub, "docker.io/a"], "docker.io/a/b", &["docker.io/a"]),
            (&[hub], "a.example/b", &[]),
            (&[hub], "a.example:5000/b", &[]),
            (&["docker.io"], "docker.io/library/busybox", &["docker.io"]),
        ] {
            assert_eq!(users(registries, repository), expected, "{repository}");
        }
    }
}
