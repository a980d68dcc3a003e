//! What CNI can fail with.

use std::{io, path::PathBuf};

use tonic::Code;

use super::plugin::{PluginError, Verb};
use crate::process::ProcessError;

/// CNI's own code for "try again later".
const TRY_AGAIN_LATER: u32 = 11;
/// CNI's own codes for "the plugin is not available" and "limited connectivity".
const NOT_AVAILABLE: std::ops::RangeInclusive<u32> = 50..=51;

/// Why a sandbox was not attached to its network, or not detached from it.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// There is no network that a sandbox could be attached to.
    #[error("network plugin is not ready: {0}")]
    NotReady(String),
    /// The sandbox's network namespace cannot be had.
    #[error("network namespace of the sandbox: {0}")]
    Process(#[from] ProcessError),
    /// A plugin failed.
    #[error("{verb} by plugin {plugin:?} of network {network:?}: {source}")]
    Plugin {
        /// What it was asked.
        verb: Verb,
        /// Its name.
        plugin: String,
        /// The network's name.
        network: String,
        /// What became of it.
        source: PluginError,
    },
    /// What the plugins answered gives the sandbox no address.
    #[error("ADD to network {network:?}: {reason}")]
    Result {
        /// The network's name.
        network: String,
        /// What is wrong.
        reason: String,
    },
    /// A plugin that an earlier shim left running does not end.
    #[error("a plugin that was left running for the sandbox does not end")]
    LeftRunning,
    /// Another shim has the cache's lock for too long.
    #[error("{} is locked by another runtime that has plugins collect garbage", .0.display())]
    Locked(PathBuf),
    /// A file of the cache could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Cache {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl CniError {
    /// The gRPC code that a CRI client should see.
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
