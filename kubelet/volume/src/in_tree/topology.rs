//! The topology of a persistent volume, by the node labels of its CSI driver.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeSpec,
        VolumeNodeAffinity,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{AWS, CINDER, GCE, VSPHERE};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Separates the zones of one label.
pub(super) const ZONES: &str = "__";

/// Replaces the zones, in the volume's node affinity or else in its labels, by a requirement for
/// the driver's own label.
pub(super) fn translate(metadata: &ObjectMeta, spec: &mut PersistentVolumeSpec, driver: &str) {
    let (zone, region) = labels(metadata, spec);
    let label = |name: &str| metadata.labels.as_ref()?.get(name).map(String::as_str);
    let key = match driver {
        AWS => "topology.ebs.csi.aws.com/zone",
        CINDER => "topology.cinder.csi.openstack.org/zone",
        GCE => "topology.gke.io/zone",
        VSPHERE => {
            let zones = label(zone).into_iter().collect();
            replace_or_add(spec, zone, "topology.csi.vmware.com/zone", zones);
            let regions = label(region).into_iter().collect();
            return replace_or_add(spec, region, "topology.csi.vmware.com/region", regions);
        }
        _ => return,
    };
    let zones = label(zone).into_iter();
    let zones = zones.flat_map(|zones| zones.split(ZONES)).collect();
    replace_or_add(spec, zone, key, zones);
    if region == OLD_REGION {
        rename(spec, OLD_REGION, REGION);
    }
}

/// The labels of zones and regions that the volume uses.
fn labels(metadata: &ObjectMeta, spec: &PersistentVolumeSpec) -> (&'static str, &'static str) {
    let is_label = |name| {
        metadata
            .labels
            .as_ref()
            .is_some_and(|all| all.contains_key(name))
    };
    let is_required = |name| requirements(spec, name).next().is_some();
    let is_old = match (is_required(ZONE), is_required(OLD_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => !is_label(ZONE) && is_label(OLD_ZONE),
    };
    if is_old {
        (OLD_ZONE, OLD_REGION)
    } else {
        (ZONE, REGION)
    }
}

fn replace_or_add(spec: &mut PersistentVolumeSpec, old: &str, new: &str, values: Vec<&str>) {
    let is_required = {
        let mut old = requirements(spec, old);
        old.any(|one| one.values.as_ref().is_some_and(|values| !values.is_empty()))
    };
    if is_required {
        rename(spec, old, new);
        return;
    }
    let values: BTreeSet<&str> = values.into_iter().map(str::trim).collect();
    let values: Vec<String> = values
        .into_iter()
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
        .collect();
    if values.is_empty() {
        return;
    }
    let affinity = spec
        .node_affinity
        .get_or_insert_with(VolumeNodeAffinity::default);
    let required = affinity.required.get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions
            .get_or_insert_default()
            .push(NodeSelectorRequirement {
                key: new.to_owned(),
                operator: "In".to_owned(),
                values: Some(values.clone()),
            });
    }
}

/// The requirements of the volume's node affinity for the label.
fn requirements<'a>(
    spec: &'a PersistentVolumeSpec,
    key: &'a str,
) -> impl Iterator<Item = &'a NodeSelectorRequirement> {
    let required = spec
        .node_affinity
        .as_ref()
        .and_then(|a| a.required.as_ref());
    let terms = required.into_iter().flat_map(|r| &r.node_selector_terms);
    let all = terms.flat_map(|term| term.match_expressions.iter().flatten());
    all.filter(move |one| one.key == key)
}

fn rename(spec: &mut PersistentVolumeSpec, old: &str, new: &str) {
    let required = spec
        .node_affinity
        .as_mut()
        .and_then(|a| a.required.as_mut());
    let terms = required
        .into_iter()
        .flat_map(|r| &mut r.node_selector_terms);
    for one in terms.flat_map(|term| term.match_expressions.iter_mut().flatten()) {
        if one.key == old {
            new.clone_into(&mut one.key);
        }
    }
}
