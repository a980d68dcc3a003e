//! Resolution of the volumes in a pod's spec. Claims are followed to the persistent volumes that
//! they are bound to.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume};
use kubelet_api_client::objects::Objects;
use kubelet_pod_spec::{identity, resources};

use super::{VolumeError, in_tree};

/// How containers see a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeMode {
    /// As a directory.
    Filesystem,
    /// As a device.
    Block,
}

/// Finalizer of claims that pods still use.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Annotation of persistent volumes: a supplemental group for the pods that use them.
const GID_ANNOTATION: &str = "pv.beta.kubernetes.io/gid";

/// The source of a volume.
#[derive(Clone, Debug)]
pub enum VolumeSource {
    /// A volume in the pod's own spec.
    Inline(Box<Volume>),
    /// A persistent volume.
    Persistent(Arc<PersistentVolume>),
}

/// A volume of a pod, resolved to its source.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name in the pod's spec.
    pub name: String,
    /// Its source.
    pub source: VolumeSource,
    /// The pod's spec mounts the claim read-only.
    pub read_only: bool,
    /// Directory or device.
    pub mode: VolumeMode,
    /// Its capacity, if the volume may grow.
    pub capacity: Option<Capacity>,
    /// The source was translated to CSI from a kind that Kubernetes had built in.
    pub migrated: bool,
}

/// The size of a persistent volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Capacity in the persistent volume's spec.
    pub bytes: i64,
    /// Capacity in the claim's status.
    pub known: i64,
}

impl VolumeSpec {
    /// Name of the persistent volume, or of the volume in the pod's spec if it is inline.
    pub fn inner_name(&self) -> &str {
        match &self.source {
            VolumeSource::Inline(volume) => &volume.name,
            VolumeSource::Persistent(volume) => volume.metadata.name.as_deref().unwrap_or_default(),
        }
    }

    /// Name of the volume's directory. Names of migrated disks may have slashes.
    pub fn dir_name(&self) -> String {
        self.inner_name().replace('/', "~")
    }

    /// The volume in the pod's spec, unless it is a persistent volume.
    pub fn inline(&self) -> Option<&Volume> {
        match &self.source {
            VolumeSource::Inline(volume) => Some(volume),
            VolumeSource::Persistent(_) => None,
        }
    }

    /// The persistent volume, unless it is inline.
    pub fn persistent(&self) -> Option<&PersistentVolume> {
        match &self.source {
            VolumeSource::Inline(_) => None,
            VolumeSource::Persistent(volume) => Some(volume),
        }
    }

    /// Whether only one pod in the cluster may use the volume (`ReadWriteOncePod`). A volume with
    /// other access modes too does not count: nothing says which mode the pod wants.
    pub fn is_for_one_pod(&self) -> bool {
        let spec = self.persistent().and_then(|volume| volume.spec.as_ref());
        let modes = spec.and_then(|spec| spec.access_modes.as_deref());
        modes.is_some_and(|modes| modes == ["ReadWriteOncePod"])
    }

    /// The supplemental group for pods with this volume.
    pub fn extra_group(&self) -> Option<i64> {
        let annotations = self.persistent()?.metadata.annotations.as_ref()?;
        annotations.get(GID_ANNOTATION)?.parse().ok()
    }
}

/// Names of the volumes that the pod's containers use, as directories and as devices. Upstream
/// ignores the others.
pub fn used_volumes(spec: &PodSpec) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let mut mounts = BTreeSet::new();
    let mut devices = BTreeSet::new();
    for container in spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
    {
        mounts.extend(
            container
                .volume_mounts
                .iter()
                .flatten()
                .map(|m| m.name.as_str()),
        );
        devices.extend(
            container
                .volume_devices
                .iter()
                .flatten()
                .map(|d| d.name.as_str()),
        );
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        mounts.extend(
            container
                .volume_mounts
                .iter()
                .flatten()
                .map(|m| m.name.as_str()),
        );
        devices.extend(
            container
                .volume_devices
                .iter()
                .flatten()
                .map(|d| d.name.as_str()),
        );
    }
    (mounts, devices)
}

/// Name of the claim, in the pod's namespace, that a volume of the pod refers to.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        // The ephemeral volume controller creates the claim under this name.
        (None, Some(_)) => Some(format!("{}-{}", identity::name(pod), volume.name)),
        (None, None) => None,
    }
}

/// Resolves a volume of a pod that its containers use in the given modes.
///
/// # Errors
/// The claim, or the persistent volume that it is bound to, cannot be used.
pub async fn resolve(
    pod: &Pod,
    volume: &Volume,
    uses: &[VolumeMode],
    objects: &dyn Objects,
) -> Result<VolumeSpec, VolumeError> {
    let namespace = identity::namespace(pod);
    let Some(claim_name) = claim_name(pod, volume) else {
        return inline(volume, namespace);
    };
    let source = volume.persistent_volume_claim.as_ref();
    let read_only = source.and_then(|source| source.read_only);
    let failed = |why: String| VolumeError::Claim {
        claim: format!("{namespace}/{claim_name}"),
        why,
    };
    let claim = objects
        .persistent_volume_claim(namespace, &claim_name)
        .await
        .map_err(|error| failed(format!("failed to fetch PVC from API server: {error}")))?;
    let volume_name = bound_volume(&claim).map_err(|why| failed(why.to_owned()))?;
    if volume.ephemeral.is_some() && !is_owned_by(&claim, pod) {
        return Err(VolumeError::NotOwned {
            claim: format!("{namespace}/{claim_name}"),
            pod: format!("{namespace}/{}", identity::name(pod)),
        });
    }
    let persistent = objects
        .persistent_volume(volume_name)
        .await
        .map_err(|error| {
            failed(format!(
                "failed to fetch PV {volume_name} from API server: {error}"
            ))
        })?;
    check_bound_to(&persistent, volume_name, &claim).map_err(failed)?;
    let mode = mode_of(&persistent);
    if let Some(used_as) = uses.iter().copied().find(|used_as| *used_as != mode) {
        return Err(VolumeError::Mode {
            name: volume.name.clone(),
            mode,
            used_as,
        });
    }
    let translated = in_tree::persistent(&persistent).map_err(|why| {
        let why = format!("persistent volume {volume_name:?} cannot be used by CSI: {why}");
        VolumeError::invalid(&volume.name, why)
    })?;
    let read_only = read_only.unwrap_or_default();
    Ok(VolumeSpec {
        name: volume.name.clone(),
        read_only,
        mode,
        capacity: capacity(&persistent, &claim),
        migrated: translated.is_some(),
        source: VolumeSource::Persistent(translated.map_or(persistent, Arc::new)),
    })
}

/// A volume whose source is in the pod's spec.
fn inline(volume: &Volume, namespace: &str) -> Result<VolumeSpec, VolumeError> {
    let translated = in_tree::inline(volume, namespace)?;
    let csi = translated
        .as_ref()
        .and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
    Ok(VolumeSpec {
        name: volume.name.clone(),
        read_only: csi.and_then(|source| source.read_only).unwrap_or_default(),
        mode: VolumeMode::Filesystem,
        capacity: None,
        migrated: translated.is_some(),
        source: match translated {
            Some(volume) => VolumeSource::Persistent(Arc::new(volume)),
            None => VolumeSource::Inline(Box::new(volume.clone())),
        },
    })
}

/// Name of the persistent volume that the claim is bound to.
fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, &'static str> {
    let mut finalizers = claim.metadata.finalizers.iter().flatten();
    if claim.metadata.deletion_timestamp.is_some()
        && !finalizers.any(|finalizer| finalizer == PROTECTION)
    {
        return Err("PVC is being deleted");
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase != Some("Bound") {
        return Err("PVC is not bound");
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
    name.filter(|name| !name.is_empty())
        .ok_or("PVC has empty pvc.Spec.VolumeName")
}

fn check_bound_to(
    volume: &PersistentVolume,
    name: &str,
    claim: &PersistentVolumeClaim,
) -> Result<(), String> {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let Some(reference) = reference else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let expected = reference.uid.as_deref().unwrap_or_default();
    if expected != uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {expected} does not point to claim.UID {uid}"
        ));
    }
    Ok(())
}

fn is_owned_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref()
    })
}

fn mode_of(volume: &PersistentVolume) -> VolumeMode {
    let mode = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    match mode {
        Some("Block") => VolumeMode::Block,
        _ => VolumeMode::Filesystem,
    }
}

fn capacity(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Capacity> {
    let storage = "storage";
    let bytes = volume.spec.as_ref()?.capacity.as_ref()?.get(storage)?;
    let known = claim.status.as_ref()?.capacity.as_ref()?.get(storage)?;
    Some(Capacity {
        bytes: resources::quantity_units(bytes)?,
        known: resources::quantity_units(known)?,
    })
}
