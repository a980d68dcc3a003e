//! Which processes were sent their stop signal: a program may take a second one as a request to end
//! at once.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::model::Snapshot;

/// The first process of each container or sandbox that is being stopped.
#[derive(Debug, Default)]
pub(crate) struct StopSignals(Mutex<HashMap<String, i64>>);

impl StopSignals {
    /// Notes that the first process of a container is sent the stop signal now; `false` if it was
    /// before.
    pub(crate) fn note(&self, snapshot: &Snapshot, id: &str) -> bool {
        let Some(first) = pid(snapshot, id) else {
            return true;
        };
        let mut sent = self.0.lock();
        sent.retain(|id, sent| pid(snapshot, id) == Some(*sent));
        sent.insert(id.to_owned(), first) != Some(first)
    }

    /// The signal may not have arrived.
    pub(crate) fn forget(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// The first process of a running container or sandbox.
fn pid(snapshot: &Snapshot, id: &str) -> Option<i64> {
    let pid = match snapshot.sandbox(id) {
        Ok(sandbox) => sandbox.pid,
        Err(_) => snapshot.container(id).ok()?.pid,
    };
    (pid != 0).then_some(pid)
}
