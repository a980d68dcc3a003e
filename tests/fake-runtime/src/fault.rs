//! Faults that a test injects into the calls of a verb.

use std::{collections::HashMap, fmt, future::pending, sync::Arc, time::Duration};

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

/// A fault of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call fails with this status and has no effect.
    Error(Status),
    /// The call takes effect, but its response is lost: the caller gets this status.
    ErrorAfter(Status),
    /// The call is served after this delay.
    Delay(Duration),
    /// The call never returns and has no effect.
    Hang,
    /// The call takes effect, but never returns.
    HangAfter,
}

/// The number of calls that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next call.
    Once,
    /// The next `n` calls.
    N(usize),
    /// Every call until the faults are cleared.
    Always,
}

/// A source of random faults: returns the fault of the next call of a verb.
pub type RandomFaults = dyn Fn(Verb) -> Option<Fault> + Send + Sync;

/// What happens to the response of a call that was served.
#[derive(Debug)]
pub(super) enum ResponseFate {
    /// The caller gets it.
    Given,
    /// The caller gets this status instead.
    Lost(Status),
    /// The caller gets no response.
    Withheld,
}

impl ResponseFate {
    /// Turns `served` into what the caller gets.
    pub(super) async fn to<T>(self, served: Result<T, Status>) -> Result<T, Status> {
        match self {
            Self::Given => served,
            Self::Lost(status) => Err(status),
            Self::Withheld => pending().await,
        }
    }
}

/// The faults and call counts by verb.
#[derive(Default)]
pub(super) struct Faults {
    table: Mutex<HashMap<Verb, Vec<(Fault, Times)>>>,
    calls: Mutex<HashMap<Verb, usize>>,
    chance: Mutex<Option<Arc<RandomFaults>>>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
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
        *self.chance.lock() = None;
    }

    pub(super) fn by_chance(&self, chance: Arc<RandomFaults>) {
        *self.chance.lock() = Some(chance);
    }

    pub(super) fn calls(&self, verb: Verb) -> usize {
        self.calls.lock().get(&verb).copied().unwrap_or_default()
    }

    /// Counts the call and applies its fault. Returns what to do with the response once the call is
    /// served.
    pub(super) async fn meet(&self, verb: Verb) -> Result<ResponseFate, Status> {
        *self.calls.lock().entry(verb).or_default() += 1;
        let chance = self.chance.lock().clone();
        let fault = self.take(verb).or_else(|| chance?(verb));
        match fault {
            None => Ok(ResponseFate::Given),
            Some(Fault::Error(status)) => Err(status),
            Some(Fault::ErrorAfter(status)) => Ok(ResponseFate::Lost(status)),
            Some(Fault::Delay(by)) => {
                tokio::time::sleep(by).await;
                Ok(ResponseFate::Given)
            }
            Some(Fault::Hang) => pending().await,
            Some(Fault::HangAfter) => Ok(ResponseFate::Withheld),
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
