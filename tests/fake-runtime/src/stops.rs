//! The effect of a stop signal, whatever happens to the call that sent it.

use std::sync::Arc;

use super::{FakeRuntime, history::EndCause, objects::Behaviour};

impl FakeRuntime {
    /// Ends a container that handles the signal, even if the call has been given up.
    pub(super) fn signal(&self, id: &str, behaviour: &Behaviour) {
        let (Some(takes), code) = (behaviour.stops_after, behaviour.stop_code) else {
            return;
        };
        let (inner, id) = (Arc::downgrade(&self.0), id.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            if let Some(inner) = inner.upgrade() {
                inner.world.lock().exit(&id, EndCause::Stop, code);
            }
        });
    }
}
