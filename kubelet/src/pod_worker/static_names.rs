//! Static pods of one full name run one after the other: an edited manifest is
//! another pod of the same name.

use std::collections::HashMap;

use tokio::sync::watch;

use crate::pod::identity::PodUid;

/// Which static pod has which full name.
#[derive(Debug)]
pub(super) struct StaticNames(watch::Sender<HashMap<String, PodUid>>);

impl Default for StaticNames {
    fn default() -> Self {
        Self(watch::Sender::new(HashMap::new()))
    }
}

impl StaticNames {
    /// Waits until no other pod has the name, and takes it.
    pub(super) async fn acquire(&self, full_name: &str, uid: &PodUid) {
        let mut names = self.0.subscribe();
        loop {
            let taken = self.0.send_if_modified(|names| {
                let free = !names.contains_key(full_name);
                if free {
                    names.insert(full_name.to_owned(), uid.clone());
                }
                free
            });
            if taken || self.0.borrow().get(full_name) == Some(uid) {
                return;
            }
            // Fails only when the sender is gone, which is `self`.
            if names
                .wait_for(|names| !names.contains_key(full_name))
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Gives the name back, if the pod has it.
    pub(super) fn release(&self, full_name: &str, uid: &PodUid) {
        self.0.send_if_modified(|names| {
            let held = names.get(full_name) == Some(uid);
            if held {
                names.remove(full_name);
            }
            held
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
