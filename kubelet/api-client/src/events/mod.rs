//! Events of pods and of the node, as `kubectl describe` and `kubectl get events` show them.
//!
//! An [`EventRecorder`] takes events and neither waits nor fails. An [`EventSender`] writes them to
//! the API server, after the [`correlator`] has counted repeated ones and dropped excess ones.
//! Without an API server, events are only logged, at debug level.

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
