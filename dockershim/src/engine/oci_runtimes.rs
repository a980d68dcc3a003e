//! The engine's low-level runtimes, which pods request by runtime handler.

use std::collections::{BTreeMap, HashMap};

use bollard::models::Runtime;
use serde::Deserialize;

/// The handler of the engine's default runtime in runtime classes, as in cri-dockerd.
const DEFAULT_HANDLER: &str = "docker";
/// The engine does not list containerd shims, which are found by name.
const SHIM_PREFIX: &str = "io.containerd.";
/// Where the engine keeps what a runtime says of itself.
const FEATURES: &str = "org.opencontainers.runtime-spec.features";
/// The mount option of recursively read-only mounts.
const RECURSIVE: &str = "rro";

/// The low-level runtimes of an engine.
#[derive(Debug, Clone, Default)]
pub struct OciRuntimes {
    /// The name of the default runtime.
    default: String,
    named: BTreeMap<String, Features>,
}

/// What a runtime says of itself, in the terms of the OCI runtime specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Features {
    mount_options: Vec<String>,
    /// Annotations that must not come from a pod; prefixes end with a dot.
    potentially_unsafe_config_annotations: Vec<String>,
}

impl Features {
    /// Without a readable description, a runtime has no features.
    fn of(runtime: &Runtime) -> Self {
        let status = runtime.status.as_ref();
        let text = status.and_then(|status| status.get(FEATURES));
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

/// Whether a handler is the engine's default runtime.
pub fn is_default_handler(handler: &str) -> bool {
    handler.is_empty() || handler == DEFAULT_HANDLER
}

impl OciRuntimes {
    pub(super) fn new(default: String, runtimes: &HashMap<String, Runtime>) -> Self {
        let named = runtimes
            .iter()
            .map(|(name, runtime)| (name.clone(), Features::of(runtime)));
        Self {
            default,
            named: named.collect(),
        }
    }

    /// The names of the runtimes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// All handlers.
    pub fn handlers(&self) -> impl Iterator<Item = &str> {
        let default = ["", DEFAULT_HANDLER].into_iter();
        default.chain(self.names().filter(|name| *name != DEFAULT_HANDLER))
    }

    /// Whether the engine can run pods with this handler.
    pub fn has(&self, handler: &str) -> bool {
        is_default_handler(handler)
            || handler.starts_with(SHIM_PREFIX)
            || self.named.contains_key(handler)
    }

    /// Whether a handler's runtime can mount recursively read-only.
    pub fn can_mount_recursively_read_only(&self, handler: &str) -> bool {
        let features = self.features(handler);
        features.is_some_and(|features| features.mount_options.iter().any(|o| o == RECURSIVE))
    }

    /// The annotations that a handler's runtime calls potentially unsafe; prefixes end with a dot.
    pub fn unsafe_annotations(&self, handler: &str) -> &[String] {
        let features = self.features(handler);
        features.map_or(&[], |it| &it.potentially_unsafe_config_annotations)
    }

    fn features(&self, handler: &str) -> Option<&Features> {
        let name = match is_default_handler(handler) {
            true => &self.default,
            false => handler,
        };
        self.named.get(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_handler_has_the_features_of_its_runtime() {
        let features = json!({
            "mountOptions": ["ro", "rro"],
            "potentiallyUnsafeConfigAnnotations": ["bundle", "org.systemd.property."]
        });
        let runtimes = json!({
            "runc": {"path": "runc", "status": {FEATURES: features.to_string()}},
            "runsc": {"path": "/usr/bin/runsc"},
            "odd": {"path": "odd", "status": {FEATURES: "[]"}}
        });
        let runtimes = serde_json::from_value(runtimes).unwrap();
        let runtimes = OciRuntimes::new("runc".to_owned(), &runtimes);
        let handlers: Vec<_> = runtimes.handlers().collect();
        assert_eq!(handlers, ["", "docker", "odd", "runc", "runsc"]);
        for (handler, is_there, can) in [
            ("", true, true),
            ("docker", true, true),
            ("runc", true, true),
            ("runsc", true, false),
            ("odd", true, false),
            ("io.containerd.runsc.v1", true, false),
            ("kata", false, false),
        ] {
            let found = runtimes.has(handler);
            let recursive = runtimes.can_mount_recursively_read_only(handler);
            assert_eq!((found, recursive), (is_there, can), "{handler}");
        }
        let named = runtimes.unsafe_annotations("docker");
        assert_eq!(named, ["bundle", "org.systemd.property."]);
        assert!(runtimes.unsafe_annotations("runsc").is_empty());
    }
}
