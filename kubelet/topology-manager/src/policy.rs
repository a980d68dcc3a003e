//! Which pods are admitted, and on which nodes.

use std::cmp::Ordering;

use kubelet_machine_info::Node;

use crate::{
    hint::{ResourceHints, TopologyHint},
    merger::merge,
    node_mask::NodeMask,
};

/// `topologyManagerPolicy`, other than `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// Admits every pod.
    BestEffort,
    /// Admits pods whose resources come from as few nodes as possible.
    Restricted,
    /// Admits pods whose resources come from one node.
    SingleNumaNode,
}

impl PolicyName {
    /// The policy with a name in the configuration; `None` for `none` and other texts.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "best-effort" => Some(Self::BestEffort),
            "restricted" => Some(Self::Restricted),
            "single-numa-node" => Some(Self::SingleNumaNode),
            _ => None,
        }
    }
}

/// The policy on this machine.
#[derive(Debug, Clone)]
pub struct Policy {
    name: PolicyName,
    nodes: NodeMask,
    /// For each node by number, its distances to all nodes in their order; empty without
    /// `prefer-closest-numa-nodes`.
    distances: Vec<(u32, Vec<u64>)>,
}

impl Policy {
    /// A policy for a machine with these NUMA nodes.
    pub fn new(name: PolicyName, nodes: &[Node], prefer_closest: bool) -> Self {
        let by_distance = prefer_closest && name != PolicyName::SingleNumaNode;
        let distances = nodes.iter().filter(|_| by_distance);
        Self {
            name,
            nodes: nodes.iter().map(|node| node.node_id).collect(),
            distances: distances
                .map(|node| (node.node_id, node.distances.clone()))
                .collect(),
        }
    }

    /// The nodes for a container with these resources, and whether its pod is admitted.
    pub fn merge(&self, resources: &[ResourceHints]) -> (TopologyHint, bool) {
        let mut hints: Vec<_> = resources.iter().map(ResourceHints::to_merge).collect();
        if self.name == PolicyName::SingleNumaNode {
            let is_single = |hint: &TopologyHint| {
                hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1)
            };
            for hints in &mut hints {
                hints.retain(is_single);
            }
        }
        let mut best = merge(self.nodes, &hints, |one, other| self.compare(one, other));
        if self.name == PolicyName::SingleNumaNode && best.nodes == Some(self.nodes) {
            best.nodes = None;
        }
        let admits = self.name == PolicyName::BestEffort || best.preferred;
        (best, admits)
    }

    /// Compares sets of as many nodes: the closer ones, or those with lower numbers.
    fn compare(&self, one: NodeMask, other: NodeMask) -> Ordering {
        let distance = |nodes| self.average_distance(nodes);
        let by_distance = distance(one).total_cmp(&distance(other));
        by_distance.then_with(|| one.cmp(&other))
    }

    fn average_distance(&self, nodes: NodeMask) -> f64 {
        let mut sum = 0.0;
        for (_, distances) in self.distances.iter().filter(|(id, _)| nodes.contains(*id)) {
            let to = self.distances.iter().zip(distances);
            let to = to.filter(|((id, _), _)| nodes.contains(*id));
            sum += to.map(|(_, distance)| *distance as f64).sum::<f64>();
        }
        sum / f64::from(nodes.count().max(1).pow(2))
    }
}
