//! Holds up a shutdown of the node until its pods have ended: [`keeper`] has the inhibitor lock,
//! [`ender`] ends the pods in the order of their priorities.

pub(crate) mod ender;
pub(crate) mod keeper;
