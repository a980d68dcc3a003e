//! The node's allocatable resources.

use std::{collections::BTreeMap, path::Path};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_host::{machine::Machine, repeatable::blocking};

use super::objects::{ObjectError, Objects};

/// The allocatable resources in the node's status, or the capacity of `machine` on a node without
/// an API server. `root_dir` is on the file system that pods write to.
///
/// # Errors
/// The node object cannot be read.
pub async fn allocatable(
    machine: &Machine,
    objects: &dyn Objects,
    root_dir: &Path,
) -> Result<BTreeMap<String, Quantity>, ObjectError> {
    if let Some(node) = objects.node().await? {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.clone());
        return Ok(allocatable.unwrap_or_default());
    }
    let (machine, root_dir) = (machine.clone(), root_dir.to_owned());
    let capacity = blocking(move || machine.capacity(&root_dir)).await;
    Ok(capacity.unwrap_or_default())
}
