//! A bounded map that evicts the least recently used entry.

use std::collections::{BTreeMap, HashMap};

/// A bounded map with hashes as keys.
#[derive(Debug)]
pub(super) struct Lru<V> {
    most: usize,
    /// Values, each with the number of its last use.
    values: HashMap<u64, (u64, V)>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl<V> Lru<V> {
    /// An empty map for at most `most` values.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            values: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// The value of a key, created if missing. This counts as a use.
    pub(super) fn get_or_insert_with(&mut self, key: u64, value: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        if let Some((used, _)) = self.values.get(&key) {
            self.by_use.remove(used);
        } else if self.values.len() >= self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.by_use.insert(self.uses, key);
        let (used, value) = self.values.entry(key).or_insert_with(|| (0, value()));
        *used = self.uses;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_was_not_used_for_the_longest_time() {
        let mut lru = Lru::new(2);
        for (key, value) in [(1, "a"), (2, "b"), (1, "not new"), (3, "c")] {
            lru.get_or_insert_with(key, || value);
        }
        assert_eq!(*lru.get_or_insert_with(1, || "forgotten"), "a");
        assert_eq!(*lru.get_or_insert_with(2, || "forgotten"), "forgotten");
        assert_eq!(
            *lru.get_or_insert_with(3, || "forgotten too"),
            "forgotten too"
        );
        assert_eq!((lru.values.len(), lru.by_use.len()), (2, 2));
    }
}
