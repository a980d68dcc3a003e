//! Results of the containers' exec probes.

use std::{collections::BTreeSet, sync::Arc};

use cri_proto::runtime::v1::ExecSyncResponse;
use fake_runtime::FakeRuntime;
use parking_lot::Mutex;

/// Names of containers whose probes fail.
#[derive(Clone, Default)]
pub(crate) struct Failing(Arc<Mutex<BTreeSet<String>>>);

impl Failing {
    /// Makes all probes succeed, except those of containers that are marked as failing.
    pub(crate) fn on(runtime: &FakeRuntime) -> Self {
        let failing = Self::default();
        let names = Arc::clone(&failing.0);
        runtime.on_exec(move |container, _| ExecSyncResponse {
            exit_code: i32::from(names.lock().contains(container.name())),
            ..ExecSyncResponse::default()
        });
        failing
    }

    /// Inverts the probe results of a container.
    pub(crate) fn flip(&self, container: &str) {
        let mut names = self.0.lock();
        if !names.remove(container) {
            names.insert(container.to_owned());
        }
    }

    /// Makes all probes succeed again.
    pub(crate) fn end(&self) {
        self.0.lock().clear();
    }
}
