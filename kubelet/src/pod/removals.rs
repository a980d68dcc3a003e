//! What is removed of pods at this moment, so that a pod which comes back waits for it.

use std::{collections::BTreeMap, sync::Arc};

use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The pods of which something is being removed because nobody has them any more. Clones
/// share them.
///
/// Whoever removes begins first, and asks only then whether the pod is known; whoever runs a
/// pod makes it known first, and waits only then. So one of the two always sees the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// How many removals are under way of each pod.
    under_way: Mutex<BTreeMap<PodUid, usize>>,
    ended: Notify,
}

/// One that is under way until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal {
    shared: Arc<Shared>,
    uid: PodUid,
}

impl Removals {
    pub(crate) fn begin(&self, uid: &PodUid) -> Removal {
        *self.0.under_way.lock().entry(uid.clone()).or_default() += 1;
        Removal {
            shared: Arc::clone(&self.0),
            uid: uid.clone(),
        }
    }

    /// Waits until nothing of the pod is being removed.
    pub(crate) async fn ended(&self, uid: &PodUid) {
        loop {
            // Before the look, so that nothing that comes after it is missed.
            let ended = self.0.ended.notified();
            if !self.0.under_way.lock().contains_key(uid) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let mut under_way = self.shared.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.uid);
            }
        }
        drop(under_way);
        self.shared.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::future::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_pod_waits_for_every_removal_of_its_own() {
        let removals = Removals::default();
        let uid = PodUid::from("u");
        let first = removals.begin(&uid);
        let second = removals.begin(&uid);
        removals.ended(&PodUid::from("other")).await;
        let mut ended = Box::pin(removals.ended(&uid));
        assert!(ended.as_mut().now_or_never().is_none());
        drop(first);
        assert!(ended.as_mut().now_or_never().is_none());
        drop(second);
        ended.await;
    }
}
