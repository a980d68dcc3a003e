//! Node affinity of persistent volumes.

use std::collections::BTreeMap;

use kubelet_pod_spec::node_affinity;

use super::{VolumeError, VolumeHost, spec::VolumeSpec};

/// Checks that this node matches the volume's node affinity.
pub(super) async fn check_node(spec: &VolumeSpec, host: &VolumeHost) -> Result<(), VolumeError> {
    let volume = spec.persistent().and_then(|volume| volume.spec.as_ref());
    let affinity = volume.and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return Ok(());
    };
    let node = host.objects.node().await?;
    let labels = node.as_ref().and_then(|node| node.metadata.labels.as_ref());
    let none = BTreeMap::new();
    let name = &host.node_name;
    if node_affinity::selects(required, name, labels.unwrap_or(&none)) {
        Ok(())
    } else {
        Err(VolumeError::OtherNode)
    }
}
