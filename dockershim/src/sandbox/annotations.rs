//! The pod's annotations as those of the OCI specification, by which runtimes such as gVisor
//! and Kata Containers are configured.

use std::collections::{BTreeMap, HashMap};

use crate::engine::Connection;

/// What crun obeys in each container that it runs, whoever has written it.
const CRUN: &str = "run.oci.";

/// The engine's `Annotations` for the sandbox and the containers of a pod with these
/// annotations: those of a pod that asks for a runtime by name, where the engine takes any
/// (API 1.43). A runtime that is everybody's is configured by the node alone.
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
