//! The best nodes for several resources.

use std::{cmp::Ordering, collections::BTreeSet};

use crate::{hint::TopologyHint, node_mask::NodeMask};

/// Chooses a hint of each resource so that their common nodes are the best, and returns those. `all`
/// are the machine's nodes, and `fitter` compares sets of as many nodes.
pub(crate) fn merge(
    all: NodeMask,
    resources: &[Vec<TopologyHint>],
    fitter: impl Fn(NodeMask, NodeMask) -> Ordering,
) -> TopologyHint {
    let wanted = most_of_narrowest(resources);
    let common = common(all, resources);
    let best = common
        .into_iter()
        .filter(|(nodes, _)| nodes.count() > 0)
        .min_by(|(nodes, preferred), (other, other_preferred)| {
            other_preferred.cmp(preferred).then_with(|| {
                let rank = |nodes: NodeMask| rank(nodes.count(), *preferred, wanted);
                let by_count = rank(*nodes).cmp(&rank(*other));
                by_count.then_with(|| fitter(*nodes, *other))
            })
        });
    let (nodes, preferred) = best.unwrap_or((all, false));
    TopologyHint {
        nodes: Some(nodes),
        preferred,
    }
}

/// How good a number of nodes is; lower is better. Without a preferred choice, the resource that
/// needs the most nodes decides how many are `wanted`.
fn rank(count: u32, preferred: bool, wanted: u32) -> (u32, u32) {
    if preferred {
        return (0, count);
    }
    match count.cmp(&wanted) {
        Ordering::Equal => (0, 0),
        Ordering::Less => (1, wanted - count),
        Ordering::Greater => (2, count),
    }
}

/// The most nodes that any resource needs at least.
fn most_of_narrowest(resources: &[Vec<TopologyHint>]) -> u32 {
    let narrowest = resources.iter().filter_map(|hints| {
        let nodes = hints.iter().filter_map(|hint| hint.nodes);
        nodes.map(NodeMask::count).min()
    });
    narrowest.max().unwrap_or(0)
}

/// The common nodes of each choice of hints, and whether it is preferred: each hint is, and all
/// name the same nodes. Equal results are merged early, as the number of choices is exponential.
fn common(all: NodeMask, resources: &[Vec<TopologyHint>]) -> BTreeSet<(NodeMask, bool)> {
    /// Choices of hints for some of the resources.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Choice {
        common: NodeMask,
        /// The nodes of each hint, as long as the choice is preferred.
        same: Option<NodeMask>,
        preferred: bool,
    }
    let mut choices = BTreeSet::from([Choice {
        common: all,
        same: None,
        preferred: true,
    }]);
    for hints in resources {
        let with = |choice: &Choice, hint: &TopologyHint| {
            let same = choice.same.or(hint.nodes);
            let preferred =
                choice.preferred && hint.preferred && (hint.nodes.is_none() || hint.nodes == same);
            Choice {
                common: hint.nodes.map_or(choice.common, |it| choice.common.and(it)),
                same: same.filter(|_| preferred),
                preferred,
            }
        };
        choices = choices
            .iter()
            .flat_map(|choice| hints.iter().map(move |hint| with(choice, hint)))
            .collect();
    }
    let results = choices.into_iter();
    results.map(|it| (it.common, it.preferred)).collect()
}
