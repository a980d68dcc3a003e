//! Removals of pods' files that are in progress, so that a pod that comes back can wait for them.

use std::{collections::BTreeMap, sync::Arc};

use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The pods whose files are being removed because they have no source any more. Clones share their
/// state.
///
/// A removal begins before it checks whether the pod is known; a pod is made known before its
/// worker waits for removals. So one of the two always sees the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The number of removals in progress of each pod.
    under_way: Mutex<BTreeMap<PodUid, usize>>,
    ended: Notify,
}

/// A removal that is in progress until this is dropped.
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

    /// Waits until no removal of the pod is in progress.
    pub(crate) async fn ended(&self, uid: &PodUid) {
        loop {
            // Before the check, so that no end is missed.
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
