//! Who hears of the calls to the engine.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::Cause;

/// The outcome of a call that succeeded.
const OK: &str = "ok";
/// The outcome of a call whose caller went away before the answer.
const ABANDONED: &str = "abandoned";

/// Hears of every call to the engine when it ends.
pub trait Observe: fmt::Debug + Send + Sync {
    /// A call ended. `action` is what was attempted, as in
    /// [`EngineError`](super::EngineError); `outcome` is `ok`, the [`Cause::kind`], or
    /// `abandoned` when the caller did not wait for the end.
    fn called(&self, action: &'static str, outcome: &'static str, took: Duration);

    /// The engine was reached again after it had been away.
    fn reconnected(&self);
}

/// One call under way. Dropped before its end, the call was abandoned.
pub(super) struct Watch<'a> {
    observer: Option<(&'a dyn Observe, Instant)>,
    action: &'static str,
    outcome: &'static str,
}

impl<'a> Watch<'a> {
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

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some((observer, began)) = self.observer {
            observer.called(self.action, self.outcome, began.elapsed());
        }
    }
}
