//! Why pods are rejected, and why the managers do not start.

use std::{io, path::PathBuf};

use kubelet_cpu_manager::CpuError;
use kubelet_device_manager::{DeviceError, Obstacle};
use kubelet_host::state_file::InvalidState;
use kubelet_memory_manager::MemoryError;

/// Why a pod does not get its resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// Too few devices are left, or their plugin refuses.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Devices(#[from] DeviceError),
}

impl AdmissionError {
    /// The reason in the pod's status, as upstream.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Topology => "TopologyAffinityError",
            Self::Core(error) => error.reason().unwrap_or("UnexpectedAdmissionError"),
            Self::Cpu(_) | Self::Memory(_) | Self::Devices(_) => "UnexpectedAdmissionError",
        }
    }
}

/// Why an attempt to give a pod its resources ended.
#[derive(Debug)]
pub(crate) enum Hindrance {
    /// A plugin must be asked first, or is awaited.
    Devices(Obstacle),
    /// The pod must be rejected.
    Rejected(AdmissionError),
}

impl<E: Into<AdmissionError>> From<E> for Hindrance {
    fn from(error: E) -> Self {
        Self::Rejected(error.into())
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
