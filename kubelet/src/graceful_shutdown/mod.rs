//! Delays a node shutdown until the pods have ended: [`inhibitor_lock`] holds the lock,
//! [`pod_killer`] ends the pods in the order of their priorities.

pub(crate) mod inhibitor_lock;
pub(crate) mod pod_killer;
