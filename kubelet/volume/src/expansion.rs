//! Expansion of persistent volumes on the node, by the rules of upstream's `node_expander.go`. The
//! claim's status decides whether this node has to act, and the result is recorded there.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_host::clock;
use kubelet_pod_spec::resources;
use serde_json::{Value, json};
use tracing::warn;

use super::{
    VolumeError, VolumeHost,
    plugin::{Growth, MountRequest, VolumePlugin},
};

const STORAGE: &str = "storage";
/// Annotation of claims whose volumes need no expansion on nodes.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Conditions that are removed once a volume has grown.
const CONDITIONS: [&str; 4] = [
    "FileSystemResizePending",
    "Resizing",
    "ControllerResizeError",
    NODE_ERROR,
];
const NODE_ERROR: &str = "NodeResizeError";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// The growth state of a volume on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpansionState {
    /// Its size in bytes, if known.
    pub(super) size: Option<i64>,
    /// It cannot be expanded while it is in use.
    pub(super) is_in_use: bool,
    /// The last attempt was refused.
    pub(super) has_failed: bool,
}

/// The result of an expansion.
#[derive(Debug)]
pub(super) struct ExpansionResult {
    pub(super) known: ExpansionState,
    /// The volume has grown.
    pub(super) has_grown: bool,
    /// The volume would have to grow, but the pod only reads it.
    pub(super) is_read_only: bool,
    /// The claim, once it was read.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// Why the volume is not ready.
    pub(super) result: Result<(), VolumeError>,
}

/// Expands a volume that is smaller than the capacity in its persistent volume.
pub(super) struct Expansion<'a> {
    pub(super) plugin: &'a dyn VolumePlugin,
    pub(super) request: &'a MountRequest,
    pub(super) host: &'a VolumeHost,
    pub(super) known: ExpansionState,
}

/// What the claim says about the expansion.
struct ClaimResize {
    size: Quantity,
    bytes: i64,
    /// The resize controller reports its progress in the claim's status.
    is_reported: bool,
    /// The claim's status has the new size already: another node has expanded the volume, or no
    /// node had to.
    is_known: bool,
    stage: Option<String>,
    /// The claim requests another size by now.
    is_outdated: bool,
    is_everywhere: bool,
}

impl ClaimResize {
    fn of(claim: &PersistentVolumeClaim, capacity: &Quantity) -> Option<Self> {
        let status = claim.status.as_ref()?;
        let stages = status.allocated_resource_statuses.as_ref();
        let stage = stages.and_then(|stages| stages.get(STORAGE)).cloned();
        let allocated = status.allocated_resources.as_ref();
        let is_reported = stage.is_some() || allocated.is_some();
        let allocated = allocated.and_then(|allocated| allocated.get(STORAGE));
        let size = allocated.unwrap_or(capacity).clone();
        let bytes = resources::quantity_units(&size)?;
        let known = status.capacity.as_ref().and_then(|c| c.get(STORAGE));
        let has_all = known
            .and_then(resources::quantity_units)
            .is_some_and(|known| known >= bytes);
        let spec = claim.spec.as_ref();
        let requests = spec
            .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get(STORAGE))
            .and_then(resources::quantity_units);
        let modes = spec.and_then(|spec| spec.access_modes.as_ref());
        let mut modes = modes.into_iter().flatten();
        let mut annotations = claim.metadata.annotations.iter().flatten();
        Some(Self {
            size,
            bytes,
            is_reported,
            is_known: has_all && stage.is_none(),
            stage,
            is_outdated: requests != Some(bytes),
            is_everywhere: modes.any(|mode| mode == "ReadWriteMany")
                && !annotations.any(|(key, _)| key == NOT_REQUIRED),
        })
    }

    /// Whether this node has to act now.
    fn is_ours(&self) -> bool {
        let stage = self.stage.as_deref();
        !self.is_reported
            || (self.is_known && self.is_everywhere)
            || matches!(stage, Some(PENDING | IN_PROGRESS))
    }
}

impl Expansion<'_> {
    pub(super) async fn run(self) -> ExpansionResult {
        let mut expanded = ExpansionResult {
            known: self.known,
            has_grown: false,
            is_read_only: false,
            claim: None,
            result: Ok(()),
        };
        expanded.result = match self.grow(&mut expanded).await {
            // The API server is not available. The pod can use the volume as it is; its next sync
            // retries.
            Err(VolumeError::Object(error)) if error.is_away() => Ok(()),
            result => result,
        };
        expanded
    }

    async fn grow(&self, expanded: &mut ExpansionResult) -> Result<(), VolumeError> {
        let Some((namespace, name, capacity)) = self.claim() else {
            return Ok(());
        };
        if !self.plugin.expands(&self.request.spec) {
            return Ok(());
        }
        let objects = &*self.host.objects;
        let claim = objects.persistent_volume_claim(namespace, name).await?;
        let claim = expanded.claim.insert(claim);
        if self.request.spec.read_only {
            match ClaimResize::of(claim, capacity) {
                Some(resize) if resize.is_known => expanded.known.size = Some(resize.bytes),
                resize => expanded.is_read_only = resize.is_some(),
            }
            return Ok(());
        }
        let Some(resize) = ClaimResize::of(claim, capacity) else {
            return Ok(());
        };
        if !resize.is_ours() {
            if resize.is_known {
                expanded.known.size = Some(resize.bytes);
            }
            return Ok(());
        }
        if resize.is_reported && resize.stage.as_deref() == Some(PENDING) {
            let patch = in_progress(claim);
            *claim = objects.patch_claim_status(namespace, name, patch).await?;
        }
        let error = match self.plugin.expand(self.request, resize.bytes).await? {
            done @ (Growth::Done | Growth::Needless) => {
                if !resize.is_known {
                    let patch = finished(claim, &resize.size);
                    objects.patch_claim_status(namespace, name, patch).await?;
                }
                expanded.has_grown = matches!(done, Growth::Done);
                None
            }
            Growth::Unsupported(_) if resize.is_known || !resize.is_reported => None,
            Growth::Unsupported(error) => Some((error, false)),
            Growth::InUse(error) => {
                expanded.known.is_in_use = true;
                Some((error, false))
            }
            Growth::Refused { error, infeasible } => Some((error, infeasible)),
        };
        let Some((error, infeasible)) = error else {
            expanded.known = ExpansionState {
                size: Some(resize.bytes),
                ..ExpansionState::default()
            };
            return Ok(());
        };
        if resize.is_reported {
            let is_infeasible = infeasible || (self.known.has_failed && resize.is_outdated);
            let patch = failed(claim, &error, is_infeasible);
            let told = objects.patch_claim_status(namespace, name, patch).await;
            if let Err(error) = told {
                let volume = self.request.name();
                warn!(volume, %error, "cannot record the failed expansion in the claim's status");
            }
        }
        expanded.known.has_failed = true;
        if expanded.known.is_in_use {
            let volume = self.request.name();
            warn!(volume, %error, "cannot expand a volume in use");
            return Ok(());
        }
        Err(error)
    }

    /// Namespace and name of the claim, and the capacity of the persistent volume.
    fn claim(&self) -> Option<(&str, &str, &Quantity)> {
        let spec = self.request.spec.persistent()?.spec.as_ref()?;
        let claim = spec.claim_ref.as_ref()?;
        let capacity = spec.capacity.as_ref()?.get(STORAGE)?;
        Some((
            claim.namespace.as_deref()?,
            claim.name.as_deref()?,
            capacity,
        ))
    }
}

/// The claim's resource version, so that a patch fails if the claim has changed.
fn version(claim: &PersistentVolumeClaim) -> Value {
    json!({"resourceVersion": claim.metadata.resource_version})
}

fn in_progress(claim: &PersistentVolumeClaim) -> Value {
    let status = json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}});
    json!({"metadata": version(claim), "status": status})
}

fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    let mut status = json!({"capacity": {STORAGE: size}});
    let known = claim.status.as_ref();
    let stages = known.and_then(|status| status.allocated_resource_statuses.as_ref());
    if stages.is_some_and(|stages| stages.contains_key(STORAGE)) {
        let is_only = stages.is_some_and(|stages| stages.len() == 1);
        status["allocatedResourceStatuses"] = match is_only {
            true => Value::Null,
            false => json!({STORAGE: null}),
        };
    }
    let conditions = known.and_then(|status| status.conditions.as_ref());
    let gone = conditions.into_iter().flatten();
    let gone = gone.filter(|condition| CONDITIONS.contains(&&*condition.type_));
    let gone: Vec<Value> = gone
        .map(|condition| json!({"$patch": "delete", "type": condition.type_}))
        .collect();
    if !gone.is_empty() {
        status["conditions"] = gone.into();
    }
    json!({"metadata": version(claim), "status": status})
}

/// The patch that reports a failure. An existing error condition is kept, as upstream.
fn failed(claim: &PersistentVolumeClaim, error: &VolumeError, is_infeasible: bool) -> Value {
    let mut status = json!({});
    if !has_failed(claim.status.as_ref()) {
        status["conditions"] = json!([{
            "type": NODE_ERROR, "status": "True", "lastTransitionTime": clock::now_time(),
            "message": format!("failed to expand pvc with {error}")
        }]);
    }
    if is_infeasible {
        status["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    json!({"status": status})
}

fn has_failed(status: Option<&PersistentVolumeClaimStatus>) -> bool {
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == NODE_ERROR && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_nodes_turn_when_the_claim_says_so() {
        let resize = |known: &str, modes: &str, more: Value| {
            let mut status = more;
            status["capacity"] = json!({STORAGE: known});
            let spec = json!({"accessModes": [modes]});
            let claim = serde_json::from_value(json!({"spec": spec, "status": status}));
            let resize = ClaimResize::of(&claim.unwrap(), &Quantity("3Gi".to_owned())).unwrap();
            (resize.is_ours(), resize.bytes >> 30)
        };
        let stage = |stage: &str| {
            json!({
                "allocatedResources": {STORAGE: "2Gi"},
                "allocatedResourceStatuses": {STORAGE: stage}
            })
        };
        // With a resize controller that does not report progress.
        assert_eq!(resize("1Gi", "ReadWriteOnce", json!({})), (true, 3));
        for ours in [PENDING, IN_PROGRESS] {
            assert_eq!(resize("1Gi", "ReadWriteOnce", stage(ours)), (true, 2));
        }
        for other in ["ControllerResizeInProgress", INFEASIBLE] {
            assert_eq!(resize("1Gi", "ReadWriteOnce", stage(other)), (false, 2));
        }
        let over = json!({"allocatedResources": {STORAGE: "3Gi"}});
        assert_eq!(resize("1Gi", "ReadWriteOnce", over.clone()), (false, 3));
        assert_eq!(resize("3Gi", "ReadWriteOnce", over.clone()), (false, 3));
        // Each node has to expand the volume.
        assert_eq!(resize("3Gi", "ReadWriteMany", over), (true, 3));
    }
}
