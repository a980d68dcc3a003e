//! Sets of NUMA nodes.

use std::fmt;

/// A set of NUMA nodes with numbers below 64, as upstream.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

impl NodeMask {
    /// Whether the set has this node.
    pub fn contains(self, node: u32) -> bool {
        1_u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The number of nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The nodes in order.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |node| self.contains(*node))
    }

    /// The nodes that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it has fewer nodes than `other`, or as many with lower numbers.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    /// All sets of these nodes but the empty one, the smallest first.
    pub fn subsets(self) -> Vec<Self> {
        let mut subsets = Vec::new();
        // The next smaller number whose bits are all in the mask.
        let mut subset = self.0;
        while subset != 0 {
            subsets.push(Self(subset));
            subset = (subset - 1) & self.0;
        }
        subsets.sort_by_key(|subset| (subset.count(), subset.nodes().collect::<Vec<_>>()));
        subsets
    }
}

impl FromIterator<u32> for NodeMask {
    /// Nodes with larger numbers are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let bits = nodes.into_iter().filter_map(|node| 1_u64.checked_shl(node));
        Self(bits.fold(0, |mask, bit| mask | bit))
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.nodes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_by_size() {
        let mask: NodeMask = [0, 2, 8].into_iter().collect();
        let subsets: Vec<Vec<u32>> = mask
            .subsets()
            .into_iter()
            .map(|subset| subset.nodes().collect())
            .collect();
        let expected: [&[u32]; 7] = [&[0], &[2], &[8], &[0, 2], &[0, 8], &[2, 8], &[0, 2, 8]];
        assert_eq!(subsets, expected);
        assert_eq!(NodeMask::default().subsets(), []);
    }

    #[test]
    fn numbers_that_are_too_large_are_left_out() {
        let mask: NodeMask = [63, 64, u32::MAX].into_iter().collect();
        assert_eq!(mask.nodes().collect::<Vec<_>>(), [63]);
        assert!(!mask.contains(64));
    }
}
