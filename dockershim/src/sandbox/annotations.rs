//! The pod's annotations as those of the OCI specification, which configure runtimes such as
//! gVisor and Kata Containers.

use std::collections::{BTreeMap, HashMap};

use crate::engine::Connection;

/// The prefix of annotations that crun obeys in each container, whoever has written them.
const CRUN: &str = "run.oci.";

/// The engine's `Annotations` for the sandbox and the containers of a pod with these annotations,
/// if the pod asks for a runtime by name and the engine takes annotations (API 1.43). The node
/// alone configures the runtime that is everybody's.
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
