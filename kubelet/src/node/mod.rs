//! This node's object at the API server: created or reconciled at the start, its status
//! reported when it changes and now and then, and a lease renewed that says that the
//! node is alive.
//!
//! Everything but [`watch`], [`lease`] and [`reporter`] only computes; what other parts
//! of the kubelet know comes through [`findings::Findings`]. [`shutdown`] is for nodes without a
//! cluster as well.

pub mod addresses;
pub mod capacity;
pub mod conditions;
pub mod findings;
pub mod lease;
pub mod options;
pub mod patch;
pub mod registration;
pub mod reporter;
pub mod reservation;
pub mod runtime_state;
pub mod shutdown;
pub mod status;
pub mod system_info;
pub mod watch;
