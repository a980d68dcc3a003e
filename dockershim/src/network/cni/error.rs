//! CNI errors.

use std::{io, path::PathBuf};

use tonic::Code;

use super::plugin::{PluginError, Verb};
use crate::process::ProcessError;

/// CNI's error code for "try again later".
const TRY_AGAIN_LATER: u32 = 11;
/// CNI's error codes for "the plugin is not available" and "limited connectivity".
const NOT_AVAILABLE: std::ops::RangeInclusive<u32> = 50..=51;

/// Why a sandbox could not be attached to its network or detached from it.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The network is not ready.
    #[error("network plugin is not ready: {0}")]
    NotReady(String),
    /// The sandbox's network namespace cannot be opened.
    #[error("network namespace of the sandbox: {0}")]
    Process(#[from] ProcessError),
    /// A plugin failed.
    #[error("{verb} by plugin {plugin:?} of network {network:?}: {source}")]
    Plugin {
        /// The operation.
        verb: Verb,
        /// The plugin's name.
        plugin: String,
        /// The network's name.
        network: String,
        /// The cause.
        source: PluginError,
    },
    /// The plugins' result has no usable address for the sandbox.
    #[error("ADD to network {network:?}: {reason}")]
    Result {
        /// The network's name.
        network: String,
        /// What is wrong.
        reason: String,
    },
    /// A plugin left running by an earlier shim does not exit.
    #[error("a plugin left running for the sandbox does not exit")]
    LeftRunning,
    /// Another shim holds the lock of the cache for too long.
    #[error("{} is locked by another runtime whose plugins collect garbage", .0.display())]
    Locked(PathBuf),
    /// A cache file could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Cache {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl CniError {
    /// Whether a plugin is not installed.
    pub fn is_missing_plugin(&self) -> bool {
        let Self::Plugin { source, .. } = self else {
            return false;
        };
        matches!(source, PluginError::Missing(_))
    }

    /// The gRPC code for CRI clients.
    pub fn code(&self) -> Code {
        match self {
            Self::NotReady(_) | Self::Process(_) => Code::FailedPrecondition,
            Self::Plugin { source, .. } => match source {
                PluginError::Missing(_) => Code::FailedPrecondition,
                PluginError::Deadline => Code::DeadlineExceeded,
                PluginError::Refused { code, .. }
                    if *code == TRY_AGAIN_LATER || NOT_AVAILABLE.contains(code) =>
                {
                    Code::Unavailable
                }
                _ => Code::Unknown,
            },
            Self::LeftRunning | Self::Locked(_) => Code::Unavailable,
            Self::Result { .. } => Code::Unknown,
            Self::Cache { .. } => Code::Internal,
        }
    }
}
