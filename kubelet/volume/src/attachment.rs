//! Attachment of volumes by the cluster's controller, as the node's status shows it.

use kubelet_api_client::objects::Objects;

use super::VolumeError;

/// What the node's status still lacks for a volume to be used. Its `volumesInUse` tells the
/// controller not to detach the volume, and its `volumesAttached` confirms that it is attached.
pub(super) async fn missing_in_node(
    objects: &dyn Objects,
    unique_name: &str,
) -> Result<Option<&'static str>, VolumeError> {
    if objects.is_standalone() {
        return Ok(None);
    }
    let node = objects.node().await?;
    let Some(status) = node.as_ref().and_then(|node| node.status.as_ref()) else {
        return Ok(Some("this node's Node object is not known yet"));
    };
    let mut in_use = status.volumes_in_use.iter().flatten();
    let mut attached = status.volumes_attached.iter().flatten();
    Ok(if !in_use.any(|name| name == unique_name) {
        Some("Volume has not been added to the list of VolumesInUse in the node's volume status")
    } else if !attached.any(|volume| volume.name == unique_name) {
        Some("Volume not attached according to node status")
    } else {
        None
    })
}

/// The path of an attached volume's device, as the controller reported it; may be empty.
pub(super) async fn device_path(
    objects: &dyn Objects,
    unique_name: &str,
) -> Result<String, VolumeError> {
    let node = objects.node().await?;
    let status = node.as_ref().and_then(|node| node.status.as_ref());
    let attached = status.and_then(|status| status.volumes_attached.as_ref());
    let mut attached = attached.into_iter().flatten();
    let volume = attached.find(|volume| volume.name == unique_name);
    Ok(volume.map_or_else(String::new, |volume| volume.device_path.clone()))
}
