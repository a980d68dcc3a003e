//! The claims that a pod and its containers name.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodExtendedResourceClaimStatus, PodResourceClaim},
    resource::v1::ResourceClaim,
};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    resources,
};

use crate::{claims::ClaimKey, error::DraError};

/// A claim that a pod names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedClaim {
    pub(crate) key: ClaimKey,
    /// Whether it was created for this pod, from a template.
    pub(crate) is_own: bool,
}

/// The claims of a pod, in the order of its spec. One that was not needed has no object and is left out.
pub(crate) fn of_pod(pod: &Pod) -> Result<Vec<NamedClaim>, DraError> {
    let mut named = Vec::new();
    for claim in entries(pod) {
        let resolved = resolve(pod, claim)?;
        named.extend(resolved.map(|(name, is_own)| NamedClaim {
            key: key(pod, name),
            is_own,
        }));
    }
    named.extend(extended(pod).map(|status| NamedClaim {
        key: key(pod, &status.resource_claim_name),
        is_own: false,
    }));
    Ok(named)
}

/// The claims of a container, with the requests whose devices it has; an empty request means all.
pub(crate) fn of_container(
    pod: &Pod,
    container: &Container,
) -> Result<BTreeMap<ClaimKey, Vec<String>>, DraError> {
    let mut requests = BTreeMap::<ClaimKey, Vec<String>>::new();
    let resources = container.resources.as_ref();
    let named = resources.and_then(|resources| resources.claims.as_ref());
    for named in named.into_iter().flatten() {
        for entry in entries(pod).filter(|entry| entry.name == named.name) {
            if let Some((name, _)) = resolve(pod, entry)? {
                let of_claim = requests.entry(key(pod, name)).or_default();
                of_claim.push(named.request.clone().unwrap_or_default());
            }
        }
    }
    let Some(status) = extended(pod) else {
        return Ok(requests);
    };
    for mapping in &status.request_mappings {
        if mapping.container_name == container.name && asks(container, &mapping.resource_name) {
            let of_claim = requests.entry(key(pod, &status.resource_claim_name));
            of_claim.or_default().push(mapping.request_name.clone());
        }
    }
    Ok(requests)
}

/// Checks that a pod may use a claim.
pub(crate) fn check(pod: &Pod, named: &NamedClaim, claim: &ResourceClaim) -> Result<(), DraError> {
    let pod_uid = PodUid::of(pod);
    let uid = pod_uid.as_str();
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if named.is_own && !owners.any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        let ClaimKey { namespace, name } = &named.key;
        return Err(DraError::OfAnother {
            claim: format!("{namespace}/{name}"),
            pod: format!("{}/{}", identity::namespace(pod), identity::name(pod)),
        });
    }
    let status = claim.status.iter();
    let mut reserved = status.flat_map(|status| status.reserved_for.iter().flatten());
    if !reserved.any(|consumer| consumer.uid == uid) {
        return Err(DraError::NotReserved {
            pod: identity::name(pod).to_owned(),
            pod_uid: uid.to_owned(),
            claim: named.key.name.clone(),
            claim_uid: claim.metadata.uid.clone().unwrap_or_default(),
        });
    }
    Ok(())
}

/// The name of the claim that an entry of the spec means, and whether it was created for the pod. `None`
/// if it was not needed.
fn resolve<'a>(
    pod: &'a Pod,
    entry: &'a PodResourceClaim,
) -> Result<Option<(&'a str, bool)>, DraError> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some((name, false)));
    }
    let namespace = || identity::namespace(pod).to_owned();
    if entry.resource_claim_template_name.is_none() {
        return Err(DraError::Unsupported {
            namespace: namespace(),
            pod: identity::name(pod).to_owned(),
            claim: entry.name.clone(),
        });
    }
    let statuses = pod.status.iter();
    let mut statuses = statuses.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let status = statuses.find(|status| status.name == entry.name);
    let status = status.ok_or_else(|| DraError::NotCreated {
        namespace: namespace(),
        pod: identity::name(pod).to_owned(),
    })?;
    let name = status.resource_claim_name.as_deref();
    Ok(name.map(|name| (name, true)))
}

/// The health is shown below this name, as upstream.
pub(crate) fn resource_name(claim: &str, request: Option<&str>) -> String {
    match request.filter(|request| !request.is_empty()) {
        Some(request) => format!("claim:{claim}/{request}"),
        None => format!("claim:{claim}"),
    }
}

/// The entries of the spec that a container names: name, request and the claim.
pub(crate) fn named_by<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, Option<&'a str>, ClaimKey)> {
    let resources = container.resources.iter();
    let named = resources.flat_map(|resources| resources.claims.iter().flatten());
    named.filter_map(move |named| {
        let entry = entries(pod).find(|entry| entry.name == named.name)?;
        let (name, _) = resolve(pod, entry).ok()??;
        Some((&*named.name, named.request.as_deref(), key(pod, name)))
    })
}

fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.resource_claims.iter().flatten())
}

fn extended(pod: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}

fn key(pod: &Pod, name: &str) -> ClaimKey {
    ClaimKey {
        namespace: identity::namespace(pod).to_owned(),
        name: name.to_owned(),
    }
}

fn asks(container: &Container, resource: &str) -> bool {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    resources::amount(requests, resource) > 0
}
