//! The node's API object. The kubelet creates or reconciles it at start, reports its status when it
//! changes and at intervals, and renews the node's lease as a heartbeat.
//!
//! Apart from [`watch`], [`lease`], [`registration`] and [`reporter`], the modules send no requests
//! to the API server. Other parts of the kubelet contribute through
//! [`status_source::NodeStatusSource`].
//! [`shutdown`] also works without a cluster.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod capacity;
pub mod conditions;
pub mod lease;
pub mod options;
pub mod patch;
pub mod registration;
pub mod reporter;
pub mod reservation;
pub mod runtime_state;
pub mod shutdown;
pub mod startup;
pub mod status;
pub mod status_source;
pub mod system_info;
pub mod watch;
