//! Removal of dead containers and sandboxes.

mod collector;
mod error;
mod host;
mod log_file;
mod options;
mod plan;

pub use self::{
    collector::{ContainerCandidates, ContainerCollector, RemovedContainers},
    error::ContainerGcError,
    host::PodStates,
    options::ContainerGcOptions,
    plan::{ContainerCandidate, ContainerReason, SandboxCandidate},
};
