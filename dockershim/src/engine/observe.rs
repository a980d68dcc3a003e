//! Observation of calls to the engine.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::Cause;

/// The outcome of a successful call.
const OK: &str = "ok";
/// The outcome of a call whose caller stopped waiting.
const ABANDONED: &str = "abandoned";

/// Observes every call to the engine when it ends.
pub trait Observe: fmt::Debug + Send + Sync {
    /// Called when a call ends. `action` is the operation, as in
    /// [`EngineError`](super::EngineError); `outcome` is `ok`, the [`Cause::kind`], or `abandoned`
    /// if the caller stopped waiting.
    fn called(&self, action: &'static str, outcome: &'static str, took: Duration);

    /// Called when the engine has been reached again after it was away.
    fn reconnected(&self);
}

/// A call in progress; dropping it before its end means that it was abandoned.
pub(super) struct ObservedCall<'a> {
    observer: Option<(&'a dyn Observe, Instant)>,
    action: &'static str,
    outcome: &'static str,
}

impl<'a> ObservedCall<'a> {
    pub(super) fn begin(observer: Option<&'a dyn Observe>, action: &'static str) -> Self {
        Self {
            observer: observer.map(|observer| (observer, Instant::now())),
            action,
            outcome: ABANDONED,
        }
    }

    pub(super) fn end<T>(mut self, result: &Result<T, Cause>) {
        self.outcome = match result {
            Ok(_) => OK,
            Err(cause) => cause.kind(),
        };
    }
}

impl Drop for ObservedCall<'_> {
    fn drop(&mut self) {
        if let Some((observer, began)) = self.observer {
            observer.called(self.action, self.outcome, began.elapsed());
        }
    }
}
