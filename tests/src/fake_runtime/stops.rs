//! What a stop signal does, whatever becomes of the call that sent it.

use std::{sync::Arc, time::Duration};

use super::{FakeRuntime, lives::End};

/// Exit code of what the signal ended.
const TERMINATED: i32 = 143;

impl FakeRuntime {
    /// Lets a container end that heeds the signal, even when nobody waits for it any more.
    pub(super) fn signal(&self, id: &str, stops_after: Option<Duration>) {
        let Some(takes) = stops_after else {
            return;
        };
        let (inner, id) = (Arc::downgrade(&self.0), id.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            if let Some(inner) = inner.upgrade() {
                inner.world.lock().exit(&id, End::Stop, TERMINATED);
            }
        });
    }
}
