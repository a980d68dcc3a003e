//! Delays a node shutdown until the pods have ended: [`keeper`] holds the inhibitor lock, [`ender`]
//! ends the pods in the order of their priorities.

pub(crate) mod ender;
pub(crate) mod keeper;
