//! A cache with expiry.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of entries. A full cache evicts the entry that expires first.
const CAPACITY: usize = 4096;

/// A bounded cache whose entries each have their own time to live.
#[derive(Debug)]
pub(super) struct ExpiringCache<K, V>(Mutex<BTreeMap<K, (V, Instant)>>);

impl<K, V> Default for ExpiringCache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone, V: Clone> ExpiringCache<K, V> {
    /// The value of a key, unless it has expired.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let mut entries = self.0.lock();
        let (value, until) = entries.get(key)?;
        if *until > Instant::now() {
            return Some(value.clone());
        }
        entries.remove(key);
        None
    }

    /// Stores a value for `ttl`; does nothing if that is zero.
    pub(super) fn put(&self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else {
            return;
        };
        let mut entries = self.0.lock();
        if entries.len() >= CAPACITY && !entries.contains_key(&key) {
            entries.retain(|_, (_, until)| *until > now);
        }
        if entries.len() >= CAPACITY && !entries.contains_key(&key) {
            let first = entries.iter().min_by_key(|(_, (_, until))| *until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                entries.remove(&first);
            }
        }
        entries.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_its_time_and_the_oldest_makes_room() {
        let cache = ExpiringCache::default();
        cache.put(0, "short", Duration::from_secs(10));
        cache.put(1, "never", Duration::ZERO);
        assert_eq!((cache.get(&0), cache.get(&1)), (Some("short"), None));
        for key in 2..=CAPACITY {
            cache.put(key, "long", Duration::from_secs(60));
        }
        assert_eq!(cache.get(&0), Some("short"));
        cache.put(CAPACITY + 1, "one too many", Duration::from_secs(60));
        assert_eq!(cache.get(&0), None);
        assert_eq!(cache.get(&2), Some("long"));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(cache.get(&2), None);
    }
}
