//! Events of pods and of the node: what `kubectl describe` and `kubectl get events` show.
//!
//! Whoever sees something happen tells an [`EventRecorder`], which never waits and never
//! fails. What it takes, an [`EventSender`] writes to the API server, after the
//! [`correlator`] has counted what repeats and dropped what is too much. Without an API
//! server, events are lines of the log at debug level.

pub mod correlator;
mod lru;
pub mod reason;
mod recorder;
mod sender;
mod subject;

pub use self::{
    recorder::{EventQueue, EventRecorder},
    sender::EventSender,
    subject::Subject,
};
