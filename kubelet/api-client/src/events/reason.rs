//! Reasons of events, as upstream has them: tools match on them.

/// A container was created.
pub const CREATED: &str = "Created";
/// A container was started.
pub const STARTED: &str = "Started";
/// A container, or what it needs, cannot be had.
pub const FAILED: &str = "Failed";
/// A container is stopped.
pub const KILLING: &str = "Killing";
/// A pod ends to make room for a critical one.
pub const PREEMPTING: &str = "Preempting";
/// What failed is not tried again yet.
pub const BACK_OFF: &str = "BackOff";
/// A `postStart` hook failed.
pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
/// A `preStop` hook failed.
pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";

/// An image is pulled.
pub const PULLING: &str = "Pulling";
/// An image is there.
pub const PULLED: &str = "Pulled";
/// It is not known whether an image is there.
pub const INSPECT_FAILED: &str = "InspectFailed";
/// An image is not there, and must not be pulled.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// Pull secrets cannot be read.
pub const FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";

/// A pod's sandbox cannot be made.
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
/// The runtime does not say how a sandbox is.
pub const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";
/// A pod gets another sandbox.
pub const SANDBOX_CHANGED: &str = "SandboxChanged";
/// A pod does not end.
pub const FAILED_KILL_POD: &str = "FailedKillPod";
/// It is not known how a pod is.
pub const FAILED_SYNC: &str = "FailedSync";
/// Pods have no network.
pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
/// A volume cannot be mounted.
pub const FAILED_MOUNT: &str = "FailedMount";
/// A device cannot be had.
pub const FAILED_MAP_VOLUME: &str = "FailedMapVolume";
/// A device is there.
pub const SUCCESSFUL_MOUNT_VOLUME: &str = "SuccessfulMountVolume";
/// A file system was grown.
pub const FILE_SYSTEM_RESIZE_SUCCESSFUL: &str = "FileSystemResizeSuccessful";
/// A pod's name servers or search domains are too many.
pub const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
/// A pod is to have the cluster's name servers, and there are none.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// A resize waits for room.
pub const RESIZE_DEFERRED: &str = "ResizeDeferred";
/// The node can never give a pod what it is resized to.
pub const RESIZE_INFEASIBLE: &str = "ResizeInfeasible";
/// A resize was begun.
pub const RESIZE_STARTED: &str = "ResizeStarted";
/// A resize is done.
pub const RESIZE_COMPLETED: &str = "ResizeCompleted";
/// The runtime is against a resize, or the container is.
pub const RESIZE_ERROR: &str = "ResizeError";

/// A probe failed.
pub const UNHEALTHY: &str = "Unhealthy";
/// A probe succeeded, and has something to say.
pub const PROBE_WARNING: &str = "ProbeWarning";

/// The kubelet starts.
pub const STARTING: &str = "Starting";
/// The node runs pods.
pub const NODE_READY: &str = "NodeReady";
/// The node does not run pods.
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// Pods may be scheduled to the node.
pub const NODE_SCHEDULABLE: &str = "NodeSchedulable";
/// They may not.
pub const NODE_NOT_SCHEDULABLE: &str = "NodeNotSchedulable";
/// The node is being shut down, or is not any more.
pub const NODE_SHUTDOWN: &str = "Shutdown";
/// The node was rebooted.
pub const REBOOTED: &str = "Rebooted";
