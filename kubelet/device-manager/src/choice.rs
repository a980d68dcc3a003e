//! Chooses the devices of a container.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_topology_manager::NodeMask;

use crate::{
    assignments::Assignment,
    device::Device,
    error::{DeviceError, Obstacle, PreferenceRequest},
    ledger::{Ledger, Resource},
};

/// What plugins answered when they were asked for their preferences.
pub type Preferences = BTreeMap<PreferenceRequest, BTreeSet<String>>;

/// A request for devices of one resource.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// The pod's UID.
    pub pod: &'a str,
    /// The container's name.
    pub container: &'a str,
    /// The resource.
    pub resource: &'a str,
    /// How many devices.
    pub count: usize,
}

/// The devices of init containers that have ended when a container starts, by resource. It gets them
/// first.
#[derive(Clone, Debug, Default)]
pub struct Reusable(BTreeMap<String, BTreeSet<String>>);

impl Reusable {
    pub(crate) fn of(&self, resource: &str) -> BTreeSet<&str> {
        let ids = self.0.get(resource).into_iter().flatten();
        ids.map(String::as_str).collect()
    }

    /// Notes that a container has its devices: those of an init container that `ends` can be reused
    /// by the next containers, all others cannot any more.
    pub fn given(&mut self, ledger: &Ledger, pod: &str, container: &str, ends: bool) {
        for (resource, devices) in ledger.devices_of(pod, container) {
            let reusable = self.0.entry(resource).or_default();
            let ids = devices.into_values().flatten();
            match ends {
                true => reusable.extend(ids),
                false => ids.for_each(|id| drop(reusable.take(&id))),
            }
        }
    }
}

impl Ledger {
    /// Assigns devices to a container, from the NUMA nodes of `hint` if possible. What it has, it
    /// keeps. The plugin must then be asked what the container needs to use them.
    ///
    /// # Errors
    /// See [`Obstacle`].
    pub fn assign(
        &mut self,
        request: DeviceRequest<'_>,
        reusable: &Reusable,
        hint: Option<NodeMask>,
        preferences: &Preferences,
    ) -> Result<(), Obstacle> {
        let DeviceRequest {
            pod,
            container,
            resource,
            count,
        } = request;
        if let Some(assignment) = self.assigned.get(pod, container, resource) {
            let ids = assignment.ids();
            if ids.len() != count {
                return Err(Obstacle::Failed(DeviceError::Changed {
                    pod: pod.to_owned(),
                    container: container.to_owned(),
                    resource: resource.to_owned(),
                    had: ids.len(),
                    requested: count,
                }));
            }
            return self.check_offer(resource, &ids).map(drop);
        }
        let ids = self.choose(request, reusable, hint, preferences)?;
        let devices = self.resources.get(resource).map(|it| &it.devices);
        let of = |id: &str| devices.and_then(|devices| devices.get(id));
        let devices = Device::by_node(ids.iter().map(|id| (id.as_str(), of(id))));
        let assignment = Assignment {
            devices,
            response: None,
        };
        self.assigned.insert(pod, container, resource, assignment);
        Ok(())
    }

    fn choose(
        &self,
        request: DeviceRequest<'_>,
        reusable: &Reusable,
        hint: Option<NodeMask>,
        preferences: &Preferences,
    ) -> Result<BTreeSet<String>, Obstacle> {
        let (name, count) = (request.resource, request.count);
        let healthy = self.check_offer(name, &BTreeSet::new())?;
        let resource = &self.resources[name];
        let mut choice = Choice {
            chosen: BTreeSet::new(),
            count,
        };
        if choice.take(&reusable.of(name)) {
            return Ok(choice.owned());
        }
        let in_use = self.assigned.in_use(name);
        let available: BTreeSet<&str> = healthy.difference(&in_use).copied().collect();
        if available.len() < choice.left() {
            return Err(Obstacle::Failed(DeviceError::TooFew {
                resource: name.to_owned(),
                requested: choice.left(),
                available: available.len(),
            }));
        }
        let groups = Groups::of(resource, &available, hint);
        let aligned_suffice = choice.left() < groups.aligned.len();
        if !aligned_suffice && choice.take(&groups.aligned) {
            return Ok(choice.owned());
        }
        let among = match aligned_suffice {
            true => &groups.aligned,
            false => &available,
        };
        let preferred = choice.preferred(name, resource, among, preferences)?;
        let preferred = among.iter().filter(|id| preferred.contains(**id)).copied();
        choice.take(&preferred.collect());
        for group in [&groups.aligned, &groups.elsewhere, &groups.anywhere] {
            choice.take(group);
        }
        Ok(choice.owned())
    }
}

/// The devices that a container gets.
struct Choice<'a> {
    chosen: BTreeSet<&'a str>,
    count: usize,
}

impl<'a> Choice<'a> {
    fn left(&self) -> usize {
        self.count - self.chosen.len()
    }

    /// Takes as many of `devices` as needed. Returns whether no more are.
    fn take(&mut self, devices: &BTreeSet<&'a str>) -> bool {
        for device in devices {
            if self.left() == 0 {
                break;
            }
            self.chosen.insert(device);
        }
        self.left() == 0
    }

    /// Which devices the plugin prefers: none if it has no preference.
    fn preferred<'p>(
        &self,
        name: &str,
        resource: &Resource,
        among: &BTreeSet<&str>,
        preferences: &'p Preferences,
    ) -> Result<BTreeSet<&'p str>, Obstacle> {
        let plugin = resource.plugin();
        if self.left() == 0
            || plugin.is_none_or(|it| !it.options().get_preferred_allocation_available)
        {
            return Ok(BTreeSet::new());
        }
        let owned = |ids: BTreeSet<&str>| ids.into_iter().map(str::to_owned).collect();
        let request = PreferenceRequest {
            resource: name.to_owned(),
            available: owned(among.union(&self.chosen).copied().collect()),
            must_include: owned(self.chosen.clone()),
            size: self.count,
        };
        match preferences.get(&request) {
            Some(preferred) => Ok(preferred.iter().map(String::as_str).collect()),
            None => Err(Obstacle::Ask(request)),
        }
    }

    fn owned(self) -> BTreeSet<String> {
        self.chosen.into_iter().map(str::to_owned).collect()
    }
}

/// Available devices by their NUMA nodes.
#[derive(Default)]
struct Groups<'a> {
    /// On the nodes of the hint.
    aligned: BTreeSet<&'a str>,
    /// On other nodes.
    elsewhere: BTreeSet<&'a str>,
    /// Without a node, or all without a hint.
    anywhere: BTreeSet<&'a str>,
}

impl<'a> Groups<'a> {
    fn of(resource: &Resource, available: &BTreeSet<&'a str>, hint: Option<NodeMask>) -> Self {
        let mut groups = Self::default();
        let Some(hint) = hint.filter(|_| resource.has_topology()) else {
            groups.anywhere.clone_from(available);
            return groups;
        };
        for id in available {
            let nodes = resource.devices.get(*id).map(|device| &device.nodes);
            let nodes = nodes.into_iter().flatten();
            let is_aligned = |node: &i64| u32::try_from(*node).is_ok_and(|it| hint.contains(it));
            let group = match nodes.clone().any(is_aligned) {
                true => &mut groups.aligned,
                false if nodes.count() > 0 => &mut groups.elsewhere,
                false => &mut groups.anywhere,
            };
            group.insert(id);
        }
        groups
    }
}
