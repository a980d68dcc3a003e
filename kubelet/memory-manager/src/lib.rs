//! Memory and huge pages of containers: from which NUMA nodes they come.

#![forbid(unsafe_code)]

mod block;
mod nodes;
mod state;
mod static_policy;

pub use block::Block;
pub use nodes::{MachineMemory, MemoryTable, NodeMemory, Reserved};
pub use state::{Assignments, MemoryState};
pub use static_policy::{Amounts, MemoryError, MemoryRequest, StaticPolicy};
