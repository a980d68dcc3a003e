//! Which container has which devices.

use std::collections::{BTreeMap, BTreeSet};

use cri_proto::deviceplugin::v1beta1::ContainerAllocateResponse;

use crate::device::DevicesPerNode;

/// The devices of one resource that a container has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) devices: DevicesPerNode,
    /// What the container needs to use them; `None` until the plugin has answered.
    pub(crate) response: Option<ContainerAllocateResponse>,
}

/// By resource.
pub(crate) type OfContainer = BTreeMap<String, Assignment>;
/// By container.
pub(crate) type OfPod = BTreeMap<String, OfContainer>;

/// The devices of all containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assignments(pub(crate) BTreeMap<String, OfPod>);

impl Assignment {
    pub(crate) fn ids(&self) -> BTreeSet<&str> {
        let ids = self.devices.values().flatten();
        ids.map(String::as_str).collect()
    }
}

impl Assignments {
    pub(crate) fn get(&self, pod: &str, container: &str, resource: &str) -> Option<&Assignment> {
        self.0.get(pod)?.get(container)?.get(resource)
    }

    pub(crate) fn get_mut(
        &mut self,
        pod: &str,
        container: &str,
        resource: &str,
    ) -> Option<&mut Assignment> {
        self.0.get_mut(pod)?.get_mut(container)?.get_mut(resource)
    }

    pub(crate) fn insert(
        &mut self,
        pod: &str,
        container: &str,
        resource: &str,
        assignment: Assignment,
    ) {
        let of_pod = self.0.entry(pod.to_owned()).or_default();
        let of_container = of_pod.entry(container.to_owned()).or_default();
        of_container.insert(resource.to_owned(), assignment);
    }

    /// Pod, container, resource and devices of each assignment.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str, &str, &Assignment)> {
        self.0.iter().flat_map(|(pod, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, assignment)| {
                    let names = [pod, container, resource];
                    let [pod, container, resource] = names.map(String::as_str);
                    (pod, container, resource, assignment)
                })
            })
        })
    }

    /// The devices of a resource that containers have.
    pub(crate) fn in_use(&self, resource: &str) -> BTreeSet<&str> {
        let all = self.all().filter(|(_, _, of, _)| *of == resource);
        all.flat_map(|(.., assignment)| assignment.ids()).collect()
    }

    /// The devices of a resource that a pod's containers have.
    pub(crate) fn of_pod(&self, pod: &str, resource: &str) -> BTreeSet<&str> {
        let containers = self.0.get(pod).into_iter().flat_map(BTreeMap::values);
        let assignments = containers.filter_map(|resources| resources.get(resource));
        assignments.flat_map(Assignment::ids).collect()
    }

    /// Removes what `leave` does not select, and containers and pods that have nothing left. Returns
    /// whether anything was removed.
    pub(crate) fn retain(&mut self, leave: impl Fn(&str, &str, &Assignment) -> bool) -> bool {
        let mut any = false;
        self.0.retain(|pod, containers| {
            containers.retain(|container, resources| {
                resources.retain(|_, assignment| {
                    let stays = leave(pod, container, assignment);
                    any |= !stays;
                    stays
                });
                !resources.is_empty()
            });
            !containers.is_empty()
        });
        any
    }
}
