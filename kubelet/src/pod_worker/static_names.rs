//! Static pods of the same full name run one after the other: an edited manifest is another pod of
//! the same name.

use std::collections::{BTreeMap, VecDeque};

use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The owner of each full name of a static pod, and the pods that wait for it in order of arrival.
#[derive(Debug, Default)]
pub(super) struct StaticNames {
    /// The first pod of each queue owns the name.
    queues: Mutex<BTreeMap<String, VecDeque<PodUid>>>,
    released: Notify,
}

impl StaticNames {
    /// Adds a pod to the queue of the name, unless it is in it.
    pub(super) fn enlist(&self, full_name: &str, uid: &PodUid) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(full_name.to_owned()).or_default();
        if !queue.contains(uid) {
            queue.push_back(uid.clone());
        }
    }

    /// Waits until the pod owns the name.
    pub(super) async fn acquire(&self, full_name: &str, uid: &PodUid) {
        self.enlist(full_name, uid);
        loop {
            // Before the check, so that no release is missed.
            let released = self.released.notified();
            let first = self
                .queues
                .lock()
                .get(full_name)
                .and_then(VecDeque::front)
                .cloned();
            if first.as_ref() == Some(uid) {
                return;
            }
            released.await;
        }
    }

    /// Whether a pod owns the name or waits for it.
    pub(super) fn is_taken(&self, full_name: &str) -> bool {
        self.queues.lock().contains_key(full_name)
    }

    /// Releases the name, or stops waiting for it.
    pub(super) fn release(&self, full_name: &str, uid: &PodUid) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(full_name) else {
            return;
        };
        queue.retain(|other| other != uid);
        if queue.is_empty() {
            queues.remove(full_name);
        }
        self.released.notify_waiters();
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
        // The pod in between waited first.
        assert!(!waiting.is_finished());
        names.release("a", &mid);
        waiting.await.unwrap();
    }
}
