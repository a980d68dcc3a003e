//! Why pods are rejected, and why the managers do not start.

use std::{io, path::PathBuf};

use kubelet_cpu_manager::CpuError;
use kubelet_host::state_file::InvalidState;
use kubelet_memory_manager::MemoryError;

/// Why a pod does not get its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The topology manager's policy does not allow the NUMA nodes that have them.
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    /// `full-pcpus-only`: the container would share a core.
    #[error("{0}")]
    Core(CpuError),
    /// Too few CPUs are left.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Cpu(CpuError),
    /// Too little memory is left.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Memory(#[from] MemoryError),
}

impl AdmissionError {
    /// The reason in the pod's status, as upstream.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Topology => "TopologyAffinityError",
            Self::Core(error) => error.reason().unwrap_or("UnexpectedAdmissionError"),
            Self::Cpu(_) | Self::Memory(_) => "UnexpectedAdmissionError",
        }
    }
}

impl From<CpuError> for AdmissionError {
    fn from(error: CpuError) -> Self {
        match error.reason() {
            Some(_) => Self::Core(error),
            None => Self::Cpu(error),
        }
    }
}

/// Why the managers do not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A policy cannot be used on this machine.
    #[error("{field}: {rule}")]
    Policy {
        /// The field of the configuration.
        field: &'static str,
        /// What is wrong.
        rule: String,
    },
    /// A state file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A state file cannot be written.
    #[error("cannot write the state of the resource managers: {0}")]
    Write(#[source] io::Error),
    /// A state file must not be used.
    #[error(
        "{path} cannot be used: {source}; to change the policy, or if the file is damaged, drain \
         the node, remove the file, and start the kubelet again"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: InvalidState,
    },
    /// A state is not one of this machine with these settings.
    #[error(
        "{path} does not match the machine or the configuration: {rule}; drain the node, remove \
         the file, and start the kubelet again"
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        rule: String,
    },
}
