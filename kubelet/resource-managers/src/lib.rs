//! The managers of CPUs and memory: containers of guaranteed pods get exclusive CPUs, and memory of
//! certain NUMA nodes, when their pods are admitted. The topology manager aligns both.
//!
//! What containers have is decided in memory, so that the admission of pods does not wait for the
//! disk, and must be [saved](ResourceManagers::save) before their containers are created.

#![forbid(unsafe_code)]

mod error;
mod held;
mod managers;
mod metrics;
mod options;
mod requests;
mod start;
mod state_file;

pub use self::{
    error::{AdmissionError, StartError},
    managers::ResourceManagers,
    options::{CpuOptions, ResourceManagerOptions, Scope, TopologyOptions},
};
