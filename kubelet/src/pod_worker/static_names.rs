//! Static pods of one full name run one after the other: an edited manifest is
//! another pod of the same name.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::watch;

use crate::pod::identity::PodUid;

/// Which static pod has which full name, and who waits for it, the next first.
#[derive(Debug)]
pub(super) struct StaticNames(watch::Sender<BTreeMap<String, VecDeque<PodUid>>>);

impl Default for StaticNames {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl StaticNames {
    /// Puts a pod at the end of those that want the name, unless it is among them.
    pub(super) fn enlist(&self, full_name: &str, uid: &PodUid) {
        self.0.send_if_modified(|names| {
            let queue = names.entry(full_name.to_owned()).or_default();
            let new = !queue.contains(uid);
            if new {
                queue.push_back(uid.clone());
            }
            new
        });
    }

    /// Waits until the pod has the name.
    pub(super) async fn acquire(&self, full_name: &str, uid: &PodUid) {
        self.enlist(full_name, uid);
        let mut names = self.0.subscribe();
        // Fails only when the sender is gone, which is `self`.
        let _ = names
            .wait_for(|names| names.get(full_name).and_then(VecDeque::front) == Some(uid))
            .await;
    }

    /// Gives the name back, or no longer waits for it.
    pub(super) fn release(&self, full_name: &str, uid: &PodUid) {
        self.0.send_if_modified(|names| {
            let Some(queue) = names.get_mut(full_name) else {
                return false;
            };
            let before = queue.len();
            queue.retain(|other| other != uid);
            let released = queue.len() != before;
            if queue.is_empty() {
                names.remove(full_name);
            }
            released
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_had_by_one_pod_at_a_time() {
        let names = Arc::new(StaticNames::default());
        let (old, mid, new) = (PodUid::from("1"), PodUid::from("2"), PodUid::from("3"));
        names.acquire("a", &old).await;
        names.acquire("a", &old).await;
        names.enlist("a", &mid);
        let waiting = tokio::spawn({
            let (names, new) = (Arc::clone(&names), new.clone());
            async move { names.acquire("a", &new).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        names.release("a", &old);
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The one in between came first.
        assert!(!waiting.is_finished());
        names.release("a", &mid);
        waiting.await.unwrap();
    }
}
