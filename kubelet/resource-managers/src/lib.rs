//! The managers of CPUs, memory and devices: containers of guaranteed pods get exclusive CPUs, and
//! memory of certain NUMA nodes, and all get the devices that they request, when their pods are
//! admitted. The topology manager aligns them.
//!
//! What containers have is decided in memory, so that the admission of pods does not wait for the
//! disk, and must be [saved](ResourceManagers::save) before their containers are created.

#![forbid(unsafe_code)]

mod admission;
mod error;
mod held;
mod managers;
mod metrics;
mod options;
mod requests;
mod start;
mod state_file;

pub use self::{
    admission::Admitted,
    error::{AdmissionError, StartError},
    managers::ResourceManagers,
    options::{CpuOptions, ResourceManagerOptions, Scope, TopologyOptions},
};
