//! Passes the pod's annotations on as OCI annotations, which configure runtimes such as gVisor and
//! Kata Containers.

use std::collections::{BTreeMap, HashMap};

use crate::engine::{Connection, is_default_handler};

/// Annotations, or their prefixes, that change what runtimes do outside the container, no matter who
/// set them: crun's own, and those that runc lists as potentially unsafe in its features.
const UNSAFE: [&str; 4] = [
    "run.oci.",
    "bundle",
    "org.systemd.property.",
    "org.criu.config",
];

/// The engine's `Annotations` for the sandbox and the containers of a pod with these annotations.
/// `None` unless the pod names a runtime handler and the engine supports annotations (API 1.43).
/// The default runtime is configured only by the node.
pub fn annotations(
    engine: &Connection,
    handler: &str,
    annotations: &BTreeMap<String, String>,
) -> Option<HashMap<String, String>> {
    if is_default_handler(handler) || !engine.serves(1, 43) {
        return None;
    }
    let named = engine.info.runtimes.unsafe_annotations(handler);
    let is_safe = |key: &str| {
        let named = named.iter().map(String::as_str);
        !UNSAFE.into_iter().chain(named).any(|it| matches(it, key))
    };
    let given = annotations.iter().filter(|(key, _)| is_safe(key));
    let given: HashMap<_, _> = given.map(|(k, v)| (k.clone(), v.clone())).collect();
    (!given.is_empty()).then_some(given)
}

/// Whether a key is the one of a pattern, or begins with it if the pattern ends with a dot.
fn matches(pattern: &str, key: &str) -> bool {
    match pattern.ends_with('.') {
        true => key.starts_with(pattern),
        false => key == pattern,
    }
}
