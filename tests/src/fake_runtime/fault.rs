//! Faults that a test puts in the way of a verb.

use std::{collections::HashMap, future::pending, time::Duration};

use parking_lot::Mutex;
use tonic::Status;

macro_rules! verbs {
    ($($verb:ident),* $(,)?) => {
        /// A verb of CRI v1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "the names are CRI's")]
        pub enum Verb {
            $($verb),*
        }

        impl Verb {
            /// Every verb of both services.
            pub const ALL: &'static [Self] = &[$(Self::$verb),*];
        }
    };
}

verbs!(
    Version,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    PodSandboxStatus,
    ListPodSandbox,
    StreamPodSandboxes,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ListContainers,
    StreamContainers,
    ContainerStatus,
    UpdateContainerResources,
    ReopenContainerLog,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    ContainerStats,
    ListContainerStats,
    StreamContainerStats,
    PodSandboxStats,
    ListPodSandboxStats,
    StreamPodSandboxStats,
    UpdateRuntimeConfig,
    Status,
    CheckpointContainer,
    CheckpointPod,
    RestorePod,
    GetContainerEvents,
    ListMetricDescriptors,
    ListPodSandboxMetrics,
    StreamPodSandboxMetrics,
    RuntimeConfig,
    UpdatePodSandboxResources,
    ListImages,
    StreamImages,
    ImageStatus,
    PullImage,
    RemoveImage,
    ImageFsInfo,
);

/// What happens to a call instead of, or before, what it asks for.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call fails with this status and does nothing.
    Error(Status),
    /// The call does what it was asked, and its answer is lost: the caller sees
    /// this status.
    ErrorAfter(Status),
    /// The call is served after this long.
    Delay(Duration),
    /// The call never answers and does nothing.
    Hang,
}

/// How many calls a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next call.
    Once,
    /// The next so many calls.
    N(usize),
    /// Every call until the faults are cleared.
    Always,
}

/// Faults and call counts by verb.
#[derive(Debug, Default)]
pub(super) struct Faults {
    table: Mutex<HashMap<Verb, Vec<(Fault, Times)>>>,
    calls: Mutex<HashMap<Verb, usize>>,
}

impl Faults {
    pub(super) fn add(&self, verb: Verb, fault: Fault, times: Times) {
        self.table
            .lock()
            .entry(verb)
            .or_default()
            .push((fault, times));
    }

    pub(super) fn clear(&self) {
        self.table.lock().clear();
    }

    pub(super) fn calls(&self, verb: Verb) -> usize {
        self.calls.lock().get(&verb).copied().unwrap_or_default()
    }

    /// Counts the call and lets it meet its fault. `Some` is an answer that is to
    /// be lost once the call is served.
    pub(super) async fn meet(&self, verb: Verb) -> Result<Option<Status>, Status> {
        *self.calls.lock().entry(verb).or_default() += 1;
        match self.take(verb) {
            None => Ok(None),
            Some(Fault::Error(status)) => Err(status),
            Some(Fault::ErrorAfter(status)) => Ok(Some(status)),
            Some(Fault::Delay(by)) => {
                tokio::time::sleep(by).await;
                Ok(None)
            }
            Some(Fault::Hang) => pending().await,
        }
    }

    fn take(&self, verb: Verb) -> Option<Fault> {
        let mut table = self.table.lock();
        let queue = table.get_mut(&verb)?;
        let (fault, times) = queue.first_mut()?;
        let fault = fault.clone();
        match times {
            Times::Always => {}
            Times::N(n) if *n > 1 => *n -= 1,
            Times::Once | Times::N(_) => {
                queue.remove(0);
            }
        }
        Some(fault)
    }
}
