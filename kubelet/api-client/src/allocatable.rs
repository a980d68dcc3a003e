//! The node's allocatable resources.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::objects::{ObjectError, Objects};

/// The allocatable resources in the node's status, or `own` on a node without an API server.
///
/// # Errors
/// The node object cannot be read.
pub async fn allocatable(
    own: &BTreeMap<String, Quantity>,
    objects: &dyn Objects,
) -> Result<BTreeMap<String, Quantity>, ObjectError> {
    let Some(node) = objects.node().await? else {
        return Ok(own.clone());
    };
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.clone());
    Ok(allocatable.unwrap_or_default())
}
