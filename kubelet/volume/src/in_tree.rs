//! Persistent volumes of in-tree kinds that were migrated to CSI drivers. This kubelet does not
//! translate them and does not tell the cluster that it would; the error says how to recreate such
//! a volume.

use k8s_openapi::api::core::v1::PersistentVolumeSpec;

use super::{VolumeError, spec::VolumeSpec};

/// The error for a volume that no plugin supports.
pub(super) fn unsupported(spec: &VolumeSpec) -> VolumeError {
    let persistent = spec.persistent();
    let kind = persistent.and_then(|volume| kind(volume.spec.as_ref()?));
    match (persistent, kind) {
        (Some(volume), Some((kind, driver))) => VolumeError::NotTranslated {
            volume: spec.name.clone(),
            persistent: volume.metadata.name.clone().unwrap_or_default(),
            kind,
            driver,
        },
        _ => VolumeError::Unsupported(spec.name.clone()),
    }
}

/// The source field of a migrated volume, and the CSI driver that took it over.
fn kind(spec: &PersistentVolumeSpec) -> Option<(&'static str, &'static str)> {
    let kinds = [
        (
            spec.aws_elastic_block_store.is_some(),
            "awsElasticBlockStore",
            "ebs.csi.aws.com",
        ),
        (spec.azure_disk.is_some(), "azureDisk", "disk.csi.azure.com"),
        (spec.azure_file.is_some(), "azureFile", "file.csi.azure.com"),
        (spec.cinder.is_some(), "cinder", "cinder.csi.openstack.org"),
        (
            spec.gce_persistent_disk.is_some(),
            "gcePersistentDisk",
            "pd.csi.storage.gke.io",
        ),
        (
            spec.portworx_volume.is_some(),
            "portworxVolume",
            "pxd.portworx.com",
        ),
        (
            spec.vsphere_volume.is_some(),
            "vsphereVolume",
            "csi.vsphere.vmware.com",
        ),
    ];
    let mut kinds = kinds.into_iter();
    kinds.find_map(|(is_it, kind, driver)| is_it.then_some((kind, driver)))
}
