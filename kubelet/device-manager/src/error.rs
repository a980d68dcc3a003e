//! Why containers do not get devices.

use std::time::Duration;

/// Why a container does not get its devices, in upstream's words where it has some.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No plugin offers the resource.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The plugin is gone, or all of its devices have failed.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthy(String),
    /// The container had devices before, which have failed.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    NoLongerHealthy(String),
    /// Other containers have them.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    TooFew {
        /// The resource.
        resource: String,
        /// How many are needed.
        requested: usize,
        /// How many are left.
        available: usize,
    },
    /// The container requests another number of devices than it has.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {had} to {requested}"
    )]
    Changed {
        /// The pod's UID.
        pod: String,
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// How many it has.
        had: usize,
        /// How many it requests.
        requested: usize,
    },
    /// The plugin is gone.
    #[error("the device plugin of {0} is not connected")]
    Stopped(String),
    /// The plugin refused a call, or the connection broke.
    #[error("device plugin {method} rpc of {resource} failed with err: {message}")]
    Call {
        /// The resource.
        resource: String,
        /// The method.
        method: &'static str,
        /// The plugin's words.
        message: String,
    },
    /// The plugin did not answer in time.
    #[error("device plugin {method} rpc of {resource}: no answer within {limit:?}")]
    Deadline {
        /// The resource.
        resource: String,
        /// The method.
        method: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The plugin's answer makes no sense.
    #[error("device plugin of {resource}: invalid answer to Allocate: {rule}")]
    Answer {
        /// The resource.
        resource: String,
        /// The field and what is wrong with it.
        rule: String,
    },
}

/// Why devices cannot be assigned now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The plugin must be asked first which devices it prefers.
    Ask(PreferenceRequest),
    /// The plugin of this resource has not registered yet, or has not reported its devices.
    Awaited(String),
    /// They never can.
    Failed(DeviceError),
}

impl From<DeviceError> for Obstacle {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error)
    }
}

/// A question to a plugin: which of its devices it prefers for a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreferenceRequest {
    /// The resource.
    pub resource: String,
    /// The devices to choose from.
    pub available: Vec<String>,
    /// Those that the container gets in any case.
    pub must_include: Vec<String>,
    /// How many it gets.
    pub size: usize,
}
