//! Exclusive CPUs of containers: which CPUs they get, and which the others share.

#![forbid(unsafe_code)]

mod assignment;
mod distribution;
mod options;
mod state;
mod static_policy;
mod topology;

pub use assignment::{NotEnoughCpus, Packing, Placement, take};
pub use options::{OptionGates, StaticOptions};
pub use state::{Assignments, CpuState};
pub use static_policy::{CpuError, CpuRequest, StaticPolicy};
pub use topology::{CpuPlace, CpuTopology, Level};
