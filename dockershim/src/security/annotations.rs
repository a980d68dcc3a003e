//! Passes the pod's annotations on as OCI annotations, which configure runtimes such as gVisor and
//! Kata Containers.

use std::collections::{BTreeMap, HashMap};

use crate::engine::Connection;

/// The prefix of annotations that crun honours in every container, no matter who set them.
const CRUN: &str = "run.oci.";

/// The engine's `Annotations` for the sandbox and the containers of a pod with these annotations.
/// `None` unless the pod names a runtime handler and the engine supports annotations (API 1.43).
/// The default runtime is configured only by the node.
pub fn annotations(
    engine: &Connection,
    handler: &str,
    annotations: &BTreeMap<String, String>,
) -> Option<HashMap<String, String>> {
    if handler.is_empty() || !engine.serves(1, 43) {
        return None;
    }
    let given = annotations.iter().filter(|(key, _)| !key.starts_with(CRUN));
    let given: HashMap<_, _> = given.map(|(k, v)| (k.clone(), v.clone())).collect();
    (!given.is_empty()).then_some(given)
}
