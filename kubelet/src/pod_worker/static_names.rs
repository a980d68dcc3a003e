//! Static pods of one full name run one after the other: an edited manifest is
//! another pod of the same name.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::pod::identity::PodUid;

/// Which static pod has which full name. Who waits for a name first gets it first.
#[derive(Debug, Default)]
pub(super) struct StaticNames {
    holders: Mutex<HashMap<String, PodUid>>,
    released: Notify,
}

impl StaticNames {
    /// Waits until no other pod has the name, and takes it.
    pub(super) async fn acquire(&self, full_name: &str, uid: &PodUid) {
        loop {
            // Before the look, so that nothing that comes after it is missed.
            let released = self.released.notified();
            {
                let mut holders = self.holders.lock();
                let holder = holders
                    .entry(full_name.to_owned())
                    .or_insert_with(|| uid.clone());
                if holder == uid {
                    return;
                }
            }
            released.await;
        }
    }

    /// Gives the name back, if the pod has it.
    pub(super) fn release(&self, full_name: &str, uid: &PodUid) {
        let mut holders = self.holders.lock();
        if holders.get(full_name) == Some(uid) {
            holders.remove(full_name);
            self.released.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_had_by_one_pod_at_a_time() {
        let names = Arc::new(StaticNames::default());
        let (old, new) = (PodUid::from("1"), PodUid::from("2"));
        names.acquire("a", &old).await;
        names.acquire("a", &old).await;
        let waiting = tokio::spawn({
            let (names, new) = (Arc::clone(&names), new.clone());
            async move { names.acquire("a", &new).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        names.release("a", &new);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        names.release("a", &old);
        waiting.await.unwrap();
    }
}
