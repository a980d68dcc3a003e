//! The nodes that policies choose, compared with those of Kubernetes 1.36.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kubelet_machine_info::Node;
use kubelet_topology_manager::{NodeMask, Policy, PolicyName, ResourceHints, TopologyHint};
use proptest::{collection::vec, prelude::*};

fn hint(text: &str) -> TopologyHint {
    let nodes = text.trim_start_matches('*');
    let mask = || nodes.split('+').map(|node| node.parse::<u32>().unwrap());
    TopologyHint {
        nodes: (nodes != "any").then(|| mask().collect()),
        preferred: text.starts_with('*'),
    }
}

fn hints(text: &str) -> ResourceHints {
    match text {
        "any" => ResourceHints::Any,
        "none" => ResourceHints::Among(Vec::new()),
        hints => ResourceHints::Among(hints.split(' ').map(hint).collect()),
    }
}

fn nodes(distances: &str) -> Vec<Node> {
    let distances = distances.split(',').zip(0..);
    let nodes = distances.map(|(distances, node_id)| Node {
        node_id,
        distances: distances
            .split(' ')
            .map(|distance| distance.parse().unwrap())
            .collect(),
        ..Node::default()
    });
    nodes.collect()
}

#[test]
fn the_nodes_are_those_of_upstream() {
    let rows = include_str!("merge.tsv").lines();
    let mut different = Vec::new();
    let mut count = 0;
    for row in rows.filter(|row| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let [name, option, distances, resources, expected, result] = fields[..] else {
            panic!("{row}");
        };
        let name = PolicyName::parse(name).unwrap();
        let policy = Policy::new(name, &nodes(distances), option == "closest");
        let resources: Vec<_> = resources.split(" | ").map(hints).collect();
        let found = policy.merge(&resources);
        if found != (hint(expected), result == "admitted") {
            different.push(format!("{row}\n  found: {found:?}"));
        }
        count += 1;
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(count >= 60, "{count} rows");
}

fn any_hints() -> impl Strategy<Value = ResourceHints> {
    let hint = (any::<u8>(), any::<bool>()).prop_map(|(bits, preferred)| TopologyHint {
        nodes: Some((0..8).filter(|bit| bits & 1 << bit != 0).collect()),
        preferred,
    });
    prop_oneof![
        Just(ResourceHints::Any),
        vec(hint, 0..4).prop_map(ResourceHints::Among)
    ]
}

/// All choices of one hint of each resource.
fn choices(resources: &[ResourceHints]) -> Vec<Vec<TopologyHint>> {
    let any = |preferred| TopologyHint {
        nodes: None,
        preferred,
    };
    resources.iter().fold(vec![vec![]], |choices, resource| {
        let hints = match resource {
            ResourceHints::Any => vec![any(true)],
            ResourceHints::Among(hints) if hints.is_empty() => vec![any(false)],
            ResourceHints::Among(hints) => hints.clone(),
        };
        let with = |choice: &Vec<TopologyHint>| {
            let choice = choice.clone();
            let hints = hints.clone().into_iter();
            hints.map(move |hint| [choice.clone(), vec![hint]].concat())
        };
        choices.iter().flat_map(with).collect()
    })
}

proptest! {
    /// The nodes are those that the hints of some choice have in common, and preferred if there is a
    /// choice of preferred hints with the same nodes.
    #[test]
    fn the_nodes_are_common_to_a_choice_of_hints(resources in vec(any_hints(), 0..4)) {
        let all: Vec<Node> = (0..8).map(|node_id| Node { node_id, ..Node::default() }).collect();
        let (best, admits) = Policy::new(PolicyName::Restricted, &all, false).merge(&resources);
        prop_assert_eq!(admits, best.preferred);
        let all: NodeMask = (0..8).collect();
        let mut common = Vec::new();
        for choice in choices(&resources) {
            let named: Vec<NodeMask> = choice.iter().filter_map(|hint| hint.nodes).collect();
            let nodes = named.iter().fold(all, |common, nodes| common.and(*nodes));
            let is_preferred = choice.iter().all(|hint| hint.preferred)
                && named.iter().all(|nodes| nodes == &named[0]);
            if nodes.count() > 0 {
                common.push((nodes, is_preferred));
            }
        }
        let nodes = best.nodes.unwrap();
        if common.is_empty() {
            prop_assert_eq!((nodes, best.preferred), (all, false));
        } else {
            prop_assert!(common.contains(&(nodes, best.preferred)));
            prop_assert_eq!(best.preferred, common.iter().any(|(_, preferred)| *preferred));
        }
    }
}
