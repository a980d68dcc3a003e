//! Exclusive CPUs of containers: which CPUs they get, and which the others share.

#![forbid(unsafe_code)]

mod assignment;
mod distribution;
mod topology;

pub use assignment::{NotEnoughCpus, Packing, Placement, take};
pub use topology::{CpuPlace, CpuTopology, Level};
