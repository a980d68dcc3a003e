//! What plugins offer, and what containers have of it.

use std::collections::{BTreeMap, BTreeSet};

use cri_proto::deviceplugin::v1beta1::{ContainerAllocateResponse, ListAndWatchResponse};
use kubelet_topology_manager::NodeMask;
use tokio::time::{Duration, Instant};
use tracing::warn;

use crate::{
    assignments::{Assignments, OfPod},
    checkpoint::Checkpoint,
    device::{Device, DevicesPerNode},
    error::{DeviceError, Obstacle},
    plugin::DevicePlugin,
};

/// How long the node keeps the resource of a plugin that is gone, as upstream.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// The longest ID of a device in bytes, so that the state file stays readable.
const LONGEST_ID: usize = 1024;

/// How long pods wait for a plugin that is gone, as one does that starts again. Upstream rejects them
/// at once.
pub(crate) const WAIT: Duration = Duration::from_secs(30);

/// Resources, and the devices of containers.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(crate) resources: BTreeMap<String, Resource>,
    pub(crate) assigned: Assignments,
    /// The machine's NUMA nodes.
    pub(crate) nodes: NodeMask,
    /// Resources whose plugin has been gone for too long.
    pub(crate) removed: BTreeMap<String, Removed>,
    /// Grows with each change of what the checkpoint tells.
    pub(crate) version: u64,
}

/// A resource that a plugin offers or has offered.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) devices: BTreeMap<String, Device>,
    pub(crate) plugin: PluginState,
}

/// A resource whose plugin has been gone for too long.
#[derive(Debug)]
pub(crate) struct Removed {
    /// The plugin had to be called before each start of a container.
    pub(crate) pre_start: bool,
    /// What it reported last: a broken device does not become healthy.
    devices: BTreeMap<String, Device>,
}

/// The plugin of a resource.
#[derive(Debug)]
pub(crate) enum PluginState {
    /// It is connected, and has reported its devices.
    Ready(DevicePlugin),
    /// It is connected since this time, and has not reported its devices.
    Connected(DevicePlugin, Instant),
    /// It is gone since this time, or has not registered since the start of the kubelet.
    Gone {
        since: Instant,
        /// Whether it had to be called before each start of a container.
        pre_start: bool,
    },
}

impl Resource {
    pub(crate) fn plugin(&self) -> Option<&DevicePlugin> {
        match &self.plugin {
            PluginState::Ready(plugin) | PluginState::Connected(plugin, _) => Some(plugin),
            PluginState::Gone { .. } => None,
        }
    }

    /// Devices that containers can get. Those of a plugin that was there before are not its.
    pub(crate) fn healthy(&self) -> BTreeSet<&str> {
        let is_ready = matches!(self.plugin, PluginState::Ready(_));
        let devices = self.devices.iter();
        let healthy = devices.filter(|(_, device)| device.healthy && is_ready);
        healthy.map(|(id, _)| id.as_str()).collect()
    }

    /// Whether its devices can be expected soon.
    pub(crate) fn is_awaited(&self) -> bool {
        match self.plugin {
            PluginState::Ready(_) => false,
            PluginState::Connected(_, since) | PluginState::Gone { since, .. } => {
                since.elapsed() <= WAIT
            }
        }
    }

    /// Since when its devices are awaited: a plugin that registers again and again without a report does
    /// not prolong that.
    fn awaited_since(&self) -> Instant {
        match self.plugin {
            PluginState::Connected(_, since) | PluginState::Gone { since, .. } => since,
            PluginState::Ready(_) => Instant::now(),
        }
    }
}

impl Ledger {
    /// The state of an earlier kubelet: its resources wait for their plugins.
    pub(crate) fn new(checkpoint: Checkpoint, nodes: NodeMask) -> Self {
        let gone = |_| Resource {
            devices: BTreeMap::new(),
            plugin: PluginState::Gone {
                since: Instant::now(),
                pre_start: false,
            },
        };
        let names = checkpoint.registered.into_keys();
        Self {
            resources: names.map(|name| (name.clone(), gone(name))).collect(),
            assigned: checkpoint.assignments,
            nodes,
            removed: BTreeMap::new(),
            version: 1,
        }
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        // Both kubelets read only the names: plugins report their devices again.
        let registered = self.resources.keys();
        Checkpoint {
            assignments: self.assigned.clone(),
            registered: registered
                .map(|name| (name.clone(), BTreeSet::new()))
                .collect(),
        }
    }

    /// Whether a plugin offers the resource or has offered it, or containers have some of it.
    pub fn manages(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
            || self.removed.contains_key(resource)
            || self.assigned.all().any(|(_, _, of, _)| of == resource)
    }

    /// Whether a container has its devices of a resource, and the plugin's answer.
    pub fn has(&self, pod: &str, container: &str, resource: &str) -> bool {
        let assignment = self.assigned.get(pod, container, resource);
        assignment.is_some_and(|it| it.response.is_some())
    }

    /// Whether the plugin of a resource has to register, or to report its devices.
    pub fn is_awaited(&self, resource: &str) -> bool {
        self.resources
            .get(resource)
            .is_some_and(Resource::is_awaited)
    }

    /// Checks that all devices of a pod work, before its containers start.
    ///
    /// # Errors
    /// A plugin is awaited, or a device has failed.
    pub fn check(&self, pod: &str) -> Result<(), Obstacle> {
        let of_pod = self.assigned.0.get(pod).into_iter().flatten();
        for (name, assignment) in of_pod.flat_map(|(_, resources)| resources) {
            self.check_offer(name, &assignment.ids())?;
        }
        Ok(())
    }

    /// Checks that a resource has healthy devices, and that `ids` are among them.
    pub(crate) fn check_offer(
        &self,
        name: &str,
        ids: &BTreeSet<&str>,
    ) -> Result<BTreeSet<&str>, Obstacle> {
        let Some(resource) = self.resources.get(name) else {
            return Err(DeviceError::Unregistered(name.to_owned()).into());
        };
        if resource.is_awaited() {
            return Err(Obstacle::Awaited(name.to_owned()));
        }
        let healthy = resource.healthy();
        if healthy.is_empty() {
            return Err(DeviceError::NoHealthy(name.to_owned()).into());
        }
        if !healthy.is_superset(ids) {
            return Err(DeviceError::NoLongerHealthy(name.to_owned()).into());
        }
        Ok(healthy)
    }

    /// What a pod's containers have, to be restored if the pod does not get everything.
    pub fn assignments_of(&self, pod: &str) -> PodAssignments {
        PodAssignments(self.assigned.0.get(pod).cloned())
    }

    /// Restores what a pod's containers had.
    pub fn restore(&mut self, pod: &str, before: PodAssignments) {
        match before.0 {
            Some(before) => drop(self.assigned.0.insert(pod.to_owned(), before)),
            None => drop(self.assigned.0.remove(pod)),
        }
    }

    /// The pods whose containers have devices.
    pub fn holders(&self) -> impl Iterator<Item = &str> {
        self.assigned.0.keys().map(String::as_str)
    }

    /// Takes the devices of containers that do not exist any more. Returns whether there were any.
    pub fn release_gone(&mut self, exists: impl Fn(&str, &str) -> bool) -> bool {
        let removed = self
            .assigned
            .retain(|pod, container, _| exists(pod, container));
        self.version += u64::from(removed);
        removed
    }

    /// Takes the devices of a pod whose plugins have not answered.
    pub(crate) fn abandon(&mut self, pod: &str) {
        self.assigned
            .retain(|of, _, assignment| of != pod || assignment.response.is_some());
    }

    /// The container, resource and devices of each question that remains to be put to a plugin for a
    /// pod.
    pub(crate) fn unanswered(&self, pod: &str) -> Vec<(String, String, Vec<String>)> {
        let of_pod = self.assigned.all().filter(|(of, ..)| *of == pod);
        let unanswered = of_pod.filter(|(.., assignment)| assignment.response.is_none());
        unanswered
            .map(|(_, container, resource, assignment)| {
                let ids = assignment.ids().into_iter().map(str::to_owned);
                (container.to_owned(), resource.to_owned(), ids.collect())
            })
            .collect()
    }

    /// Notes a plugin's answer.
    pub(crate) fn answered(
        &mut self,
        pod: &str,
        container: &str,
        resource: &str,
        response: ContainerAllocateResponse,
    ) {
        if let Some(assignment) = self.assigned.get_mut(pod, container, resource) {
            assignment.response = Some(response);
            self.version += 1;
        }
    }

    /// A plugin has registered. Returns the one that it replaces.
    pub(crate) fn connected(&mut self, name: &str, plugin: DevicePlugin) -> Option<DevicePlugin> {
        self.removed.remove(name);
        let known = self.resources.get(name);
        let since = known.map_or_else(Instant::now, Resource::awaited_since);
        let state = PluginState::Connected(plugin, since);
        match self.resources.get_mut(name) {
            Some(resource) => {
                let before = std::mem::replace(&mut resource.plugin, state);
                match before {
                    PluginState::Ready(plugin) | PluginState::Connected(plugin, _) => Some(plugin),
                    PluginState::Gone { .. } => None,
                }
            }
            None => {
                let resource = Resource {
                    devices: BTreeMap::new(),
                    plugin: state,
                };
                self.resources.insert(name.to_owned(), resource);
                None
            }
        }
    }

    /// A plugin is gone, unless another one has taken its place.
    pub(crate) fn disconnected(&mut self, plugin: &DevicePlugin) -> bool {
        let Some(resource) = self.resources.get_mut(plugin.resource()) else {
            return false;
        };
        if resource.plugin() != Some(plugin) {
            return false;
        }
        resource.plugin = PluginState::Gone {
            since: resource.awaited_since(),
            pre_start: plugin.options().pre_start_required,
        };
        self.version += 1;
        true
    }

    /// A plugin has reported its devices. Returns the pods with one whose health has changed; `None` if
    /// another plugin has taken its place.
    pub(crate) fn reported(
        &mut self,
        plugin: &DevicePlugin,
        report: &ListAndWatchResponse,
    ) -> Option<BTreeSet<String>> {
        let resource = self.resources.get_mut(plugin.resource())?;
        if resource.plugin() != Some(plugin) {
            return None;
        }
        let was_ready = matches!(resource.plugin, PluginState::Ready(_));
        let (devices, long): (Vec<_>, Vec<_>) = report
            .devices
            .iter()
            .partition(|it| it.id.len() <= LONGEST_ID);
        if !long.is_empty() {
            warn!(
                resource = plugin.resource(),
                devices = long.len(),
                "ignoring devices with IDs of more than {LONGEST_ID} bytes"
            );
        }
        let devices = devices
            .into_iter()
            .map(|device| (device.id.clone(), Device::from(device)));
        let before = std::mem::replace(&mut resource.devices, devices.collect());
        resource.plugin = PluginState::Ready(plugin.clone());
        self.version += 1;
        let health = |devices: &BTreeMap<String, Device>, id: &str| {
            devices.get(id).map(|device| device.healthy)
        };
        let resource = &self.resources[plugin.resource()];
        let of_resource = self
            .assigned
            .all()
            .filter(|(_, _, of, _)| *of == plugin.resource());
        let changed = of_resource.filter(|(.., assignment)| {
            let mut ids = assignment.ids().into_iter();
            ids.any(|id| !was_ready || health(&before, id) != health(&resource.devices, id))
        });
        Some(changed.map(|(pod, ..)| pod.to_owned()).collect())
    }

    /// Forgets the resources whose plugin has been gone for too long.
    pub(crate) fn expire(&mut self) {
        let Self {
            resources,
            removed,
            version,
            ..
        } = self;
        resources.retain(|name, resource| {
            let PluginState::Gone { since, pre_start } = resource.plugin else {
                return true;
            };
            let is_removed = since.elapsed() > GRACE;
            if is_removed {
                let devices = std::mem::take(&mut resource.devices);
                removed.insert(name.clone(), Removed { pre_start, devices });
                *version += 1;
            }
            !is_removed
        });
    }

    /// The health of a container's devices of each resource.
    pub(crate) fn health_of(
        &self,
        pod: &str,
        container: &str,
    ) -> BTreeMap<String, BTreeMap<String, bool>> {
        let of_pod = self.assigned.0.get(pod);
        let resources = of_pod
            .and_then(|it| it.get(container))
            .into_iter()
            .flatten();
        let health = resources.map(|(name, assignment)| {
            let devices = self.resources.get(name).map(|resource| &resource.devices);
            let devices = devices.or_else(|| self.removed.get(name).map(|it| &it.devices));
            let is_healthy = |id: &str| {
                // An unknown device counts as healthy, as upstream.
                let device = devices.and_then(|devices| devices.get(id));
                device.is_none_or(|device| device.healthy)
            };
            let ids = assignment.ids().into_iter();
            let ids = ids.map(|id| (id.to_owned(), is_healthy(id)));
            (name.clone(), ids.collect())
        });
        health.collect()
    }

    /// The devices of a container by resource and NUMA node.
    pub(crate) fn devices_of(
        &self,
        pod: &str,
        container: &str,
    ) -> BTreeMap<String, DevicesPerNode> {
        let of_pod = self.assigned.0.get(pod);
        let resources = of_pod
            .and_then(|it| it.get(container))
            .into_iter()
            .flatten();
        let devices = resources.map(|(name, it)| (name.clone(), it.devices.clone()));
        devices.collect()
    }

    /// The devices that containers can get, by resource and NUMA node.
    pub(crate) fn allocatable(&self) -> BTreeMap<String, DevicesPerNode> {
        let resources = self.resources.iter().map(|(name, resource)| {
            let ids = resource.healthy().into_iter();
            let devices = ids.map(|id| (id, resource.devices.get(id)));
            (name.clone(), Device::by_node(devices))
        });
        resources
            .filter(|(_, devices)| !devices.is_empty())
            .collect()
    }
}

/// What a pod's containers had.
#[derive(Clone, Debug)]
pub struct PodAssignments(Option<OfPod>);
