//! Volumes of the cloud kinds that Kubernetes had built in before CSI: each is translated to a
//! persistent volume of the CSI driver that took its kind over, as the cluster's controllers and
//! the scheduler do. Names, handles and attributes are upstream's (`csi-translation-lib`): the
//! attachment that a controller made is found by them.

mod kinds;
mod topology;

use std::{borrow::Cow, collections::BTreeSet};

use k8s_openapi::{
    api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use self::kinds::Inline;
use super::VolumeError;

/// The plugins whose volumes are translated. A node lists them in an annotation of its `CSINode`.
pub(super) const PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];

/// The CSI drivers that took them over.
const AWS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";

/// Translates a volume of a pod in the namespace; `None` if its kind needs no translation.
///
/// # Errors
/// The driver has no equivalent of the volume.
pub(super) fn inline(
    volume: &Volume,
    namespace: &str,
) -> Result<Option<PersistentVolume>, VolumeError> {
    let translated = kinds::inline(volume, namespace);
    let translated = translated.map_err(|why| VolumeError::invalid(&volume.name, why))?;
    let Some(Inline { name, mode, source }) = translated else {
        return Ok(None);
    };
    // The name is that of the volume's directory.
    if name.is_empty() || name == "." || name == ".." || name.contains('\0') {
        let why = format!("its disk cannot be called {name:?}");
        return Err(VolumeError::invalid(&volume.name, why));
    }
    Ok(Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(vec![mode.to_owned()]),
            csi: Some(source),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }))
}

/// Translates a persistent volume; `None` if its kind needs no translation.
///
/// # Errors
/// The driver has no equivalent of the volume; the text names the field.
pub(super) fn persistent(volume: &PersistentVolume) -> Result<Option<PersistentVolume>, String> {
    let Some(source) = kinds::persistent(volume)? else {
        return Ok(None);
    };
    let mut translated = volume.clone();
    if let Some(spec) = &mut translated.spec {
        topology::translate(&volume.metadata, spec, &source.driver);
        if spec.gce_persistent_disk.is_some() {
            spec.access_modes = spec.access_modes.as_deref().map(single_mode);
        }
        clear(spec);
        spec.csi = Some(source);
    }
    Ok(Some(translated))
}

/// The one access mode that a Google disk is used with: the built-in plugin did not check them, and
/// the CSI driver does.
fn single_mode(modes: &[String]) -> Vec<String> {
    let modes: BTreeSet<Cow<'_, str>> = modes
        .iter()
        .map(|mode| match mode.as_str() {
            "ReadWriteMany" => Cow::Borrowed("ReadWriteOnce"),
            mode => Cow::Borrowed(mode),
        })
        .collect();
    let only_read = modes.contains("ReadOnlyMany") && !modes.contains("ReadWriteOnce");
    let mode = if only_read {
        "ReadOnlyMany"
    } else {
        "ReadWriteOnce"
    };
    vec![mode.to_owned()]
}

/// Removes the sources of the translated kinds.
fn clear(spec: &mut PersistentVolumeSpec) {
    spec.aws_elastic_block_store = None;
    spec.azure_disk = None;
    spec.azure_file = None;
    spec.cinder = None;
    spec.gce_persistent_disk = None;
    spec.portworx_volume = None;
    spec.vsphere_volume = None;
}

/// A source of the driver, without what only some kinds have.
fn source(driver: &str, handle: &str, fs_type: Option<&String>) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        fs_type: fs_type.cloned(),
        ..CSIPersistentVolumeSource::default()
    }
}

#[cfg(test)]
mod tests;
