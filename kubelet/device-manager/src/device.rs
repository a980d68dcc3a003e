//! One device, as its plugin describes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use cri_proto::deviceplugin::v1beta1::Device as ReportedDevice;

/// The health of a device that containers can get.
const HEALTHY: &str = "Healthy";
/// The NUMA nodes that count. A device is listed once for each of its nodes.
const NODES: Range<i64> = 0..64;
/// The key of devices without a NUMA node in [`DevicesPerNode`], as upstream.
pub(crate) const WITHOUT_NODE: i64 = -1;

/// The IDs of devices by NUMA node. A device that belongs to several nodes occurs several times.
pub type DevicesPerNode = BTreeMap<i64, Vec<String>>;

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) healthy: bool,
    /// NUMA nodes; empty if the plugin does not tell.
    pub(crate) nodes: BTreeSet<i64>,
}

impl From<&ReportedDevice> for Device {
    fn from(reported: &ReportedDevice) -> Self {
        let topology = reported.topology.iter();
        let nodes = topology.flat_map(|it| &it.nodes).map(|node| node.id);
        Self {
            healthy: reported.health == HEALTHY,
            nodes: nodes.filter(|id| NODES.contains(id)).collect(),
        }
    }
}

impl Device {
    /// The NUMA nodes of these devices.
    pub(crate) fn by_node<'a>(
        devices: impl Iterator<Item = (&'a str, Option<&'a Self>)>,
    ) -> DevicesPerNode {
        let mut by_node = DevicesPerNode::new();
        for (id, device) in devices {
            let nodes = device.map(|device| &device.nodes);
            match nodes.filter(|nodes| !nodes.is_empty()) {
                Some(nodes) => nodes.iter().for_each(|node| {
                    by_node.entry(*node).or_default().push(id.to_owned());
                }),
                None => {
                    let others = by_node.entry(WITHOUT_NODE).or_default();
                    others.push(id.to_owned());
                }
            }
        }
        by_node
    }
}
