//! CPUs taken evenly from several NUMA nodes (`distribute-cpus-across-numa`, KEP 2902).

use std::collections::BTreeMap;

/// The NUMA nodes that a request is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// From each of these ...
    pub(crate) nodes: Vec<u32>,
    /// ... this many CPUs,
    pub(crate) each: usize,
    /// and from each of these a group more, again and again until there are enough.
    pub(crate) more: Vec<u32>,
}

/// Finds the fewest NUMA nodes that have `needed` CPUs to give, evenly and in groups of `group`; of
/// several, those that leave the nodes most evenly used. `free` are the free CPUs of each node, and
/// `order` is the order in which nodes are tried. `None` if there are no such nodes.
pub(crate) fn distribute(
    free: &BTreeMap<u32, usize>,
    order: &[u32],
    needed: usize,
    group: usize,
    least: usize,
) -> Option<Distribution> {
    let most = needed.div_ceil(group).min(order.len());
    (least..=most).find_map(|count| {
        let mut best = None;
        for nodes in combinations(order, count) {
            if let Some((balance, distribution)) = evenly(free, nodes, needed, group)
                && best.as_ref().is_none_or(|(least, _)| balance < *least)
            {
                best = Some((balance, distribution));
            }
        }
        best.map(|(_, distribution)| distribution)
    })
}

/// The best distribution over these nodes, and how unevenly it leaves all nodes used.
fn evenly(
    free: &BTreeMap<u32, usize>,
    nodes: Vec<u32>,
    needed: usize,
    group: usize,
) -> Option<(f64, Distribution)> {
    let free_of = |left: &BTreeMap<u32, usize>, node: &u32| left.get(node).copied().unwrap_or(0);
    let groups: usize = nodes.iter().map(|node| free_of(free, node) / group).sum();
    if groups * group < needed {
        return None;
    }
    let each = needed / nodes.len() / group * group;
    let mut left = free.clone();
    for node in &nodes {
        let of_node = left.get_mut(node)?;
        *of_node = of_node.checked_sub(each)?;
    }
    let rest = needed - each * nodes.len();
    if rest == 0 {
        let more = Vec::new();
        return Some((unevenness(&left), Distribution { nodes, each, more }));
    }
    let have_more: Vec<u32> = nodes
        .iter()
        .copied()
        .filter(|node| free_of(&left, node) >= group)
        .collect();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for count in (1..=have_more.len()).rev() {
        for more in combinations(&have_more, count) {
            let Some(left) = take_groups(left.clone(), &more, rest, group) else {
                continue;
            };
            let balance = unevenness(&left);
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, more));
            }
        }
    }
    let (balance, more) = best?;
    Some((balance, Distribution { nodes, each, more }))
}

/// What is left after `rest` CPUs were taken from `nodes`, a group from each in turn; `None` if
/// they have not enough.
fn take_groups(
    mut left: BTreeMap<u32, usize>,
    nodes: &[u32],
    mut rest: usize,
    group: usize,
) -> Option<BTreeMap<u32, usize>> {
    while rest > 0 {
        let before = rest;
        for node in nodes {
            let of_node = left.get_mut(node)?;
            if rest > 0 && *of_node >= group {
                *of_node -= group;
                rest = rest.saturating_sub(group);
            }
        }
        if rest == before {
            return None;
        }
    }
    Some(left)
}

/// The standard deviation, rounded as upstream does.
fn unevenness(left: &BTreeMap<u32, usize>) -> f64 {
    let count = left.len().max(1) as f64;
    let thousandths = |value: f64| (value * 1000.0).round() / 1000.0;
    let mean = thousandths(left.values().map(|free| *free as f64).sum::<f64>() / count);
    let squares = left.values().map(|free| (*free as f64 - mean).powi(2));
    thousandths((squares.sum::<f64>() / count).sqrt())
}

/// All ways to choose `count` of `items`, in their order.
fn combinations(items: &[u32], count: usize) -> Vec<Vec<u32>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in items.iter().enumerate() {
        for rest in combinations(&items[index + 1..], count - 1) {
            all.push([vec![*first], rest].concat());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_in_order() {
        let all = [vec![1, 2], vec![1, 3], vec![2, 3]];
        assert_eq!(combinations(&[1, 2, 3], 2), all);
        assert_eq!(combinations(&[1], 2), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn nodes_without_whole_groups_end_the_search() {
        // Upstream's kubelet hangs here: each node has a CPU left, and no group of two.
        let free = BTreeMap::from([(0, 3), (1, 3)]);
        assert_eq!(distribute(&free, &[0, 1], 6, 2, 1), None);
    }
}
