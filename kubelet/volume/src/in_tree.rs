//! Persistent volumes of the kinds that were Kubernetes' own once, and are CSI drivers' now.
//! They are not translated: the cluster is not told that they were, and who waits for one is
//! told what to make of it.

use k8s_openapi::api::core::v1::PersistentVolumeSpec;

use super::{VolumeError, spec::VolumeSpec};

/// Why nobody takes a volume.
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

/// The field that a volume of such a kind has, and the driver that took the kind over.
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
