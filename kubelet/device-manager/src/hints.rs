//! From which NUMA nodes containers can have their devices.

use std::collections::BTreeSet;

use kubelet_topology_manager::{NodeMask, ResourceHints, TopologyHint};

use crate::{
    choice::{DeviceRequest, Reusable},
    device::Device,
    ledger::{Ledger, Resource},
};

impl Resource {
    /// Whether any device has a NUMA node.
    pub(crate) fn has_topology(&self) -> bool {
        self.devices.values().any(|device| !device.nodes.is_empty())
    }
}

impl Device {
    fn is_on(&self, mask: NodeMask) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| u32::try_from(*node).is_ok_and(|node| mask.contains(node)))
    }
}

impl Ledger {
    /// From which NUMA nodes a container can have its devices.
    pub fn hints(&self, request: DeviceRequest<'_>, reusable: &Reusable) -> ResourceHints {
        let DeviceRequest {
            pod,
            container,
            resource,
            ..
        } = request;
        let assignment = self.assigned.get(pod, container, resource);
        let had = assignment.map(|assignment| assignment.ids());
        self.hints_beside(request, had.unwrap_or_default(), &reusable.of(resource))
    }

    /// From which NUMA nodes all containers of a pod can have their devices. The container in
    /// `request` is not used.
    pub fn pod_hints(&self, request: DeviceRequest<'_>) -> ResourceHints {
        let had = self.assigned.of_pod(request.pod, request.resource);
        self.hints_beside(request, had, &BTreeSet::new())
    }

    fn hints_beside(
        &self,
        request: DeviceRequest<'_>,
        had: BTreeSet<&str>,
        reusable: &BTreeSet<&str>,
    ) -> ResourceHints {
        let name = request.resource;
        let resource = self.resources.get(name);
        let Some(resource) = resource.filter(|resource| resource.has_topology()) else {
            return ResourceHints::Any;
        };
        if !had.is_empty() {
            return ResourceHints::Among(match had.len() == request.count {
                true => self.among(resource, &had, &BTreeSet::new(), request.count),
                false => Vec::new(),
            });
        }
        let in_use = self.assigned.in_use(name);
        let available: BTreeSet<&str> = resource.healthy().difference(&in_use).copied().collect();
        ResourceHints::Among(match available.union(reusable).count() < request.count {
            true => Vec::new(),
            false => self.among(resource, &available, reusable, request.count),
        })
    }

    /// The sets of NUMA nodes with enough devices. Only nodes with devices count, as upstream: a
    /// machine may have many others.
    fn among(
        &self,
        resource: &Resource,
        available: &BTreeSet<&str>,
        reusable: &BTreeSet<&str>,
        count: usize,
    ) -> Vec<TopologyHint> {
        let with_devices: NodeMask = resource
            .devices
            .values()
            .flat_map(|device| &device.nodes)
            .filter_map(|node| u32::try_from(*node).ok())
            .collect();
        let mut nodes = with_devices.and(self.nodes);
        if nodes.count() == 0 {
            nodes = self.nodes;
        }
        let on = |ids: &BTreeSet<&str>, mask: NodeMask| {
            let devices = ids.iter().filter_map(|id| resource.devices.get(*id));
            devices.filter(|device| device.is_on(mask)).count()
        };
        let mut smallest = nodes.count();
        let mut fitting = Vec::new();
        for mask in nodes.subsets() {
            let all = resource.devices.values();
            if all.filter(|device| device.is_on(mask)).count() >= count {
                smallest = smallest.min(mask.count());
            }
            // Reusable devices that are elsewhere would not be reused.
            let devices = reusable.iter().filter_map(|id| resource.devices.get(*id));
            let mut devices = devices.filter(|device| !device.nodes.is_empty());
            if devices.any(|device| !device.is_on(mask)) {
                continue;
            }
            if on(reusable, mask) + on(available, mask) >= count {
                fitting.push(mask);
            }
        }
        fitting
            .into_iter()
            .map(|mask| TopologyHint {
                nodes: Some(mask),
                preferred: mask.count() == smallest,
            })
            .collect()
    }
}
