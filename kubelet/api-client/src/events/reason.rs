//! Reasons of events. They match upstream's because tools depend on them.

/// A container was created.
pub const CREATED: &str = "Created";
/// A container was started.
pub const STARTED: &str = "Started";
/// A container, its image or its pod's directories could not be set up.
pub const FAILED: &str = "Failed";
/// A container is being stopped.
pub const KILLING: &str = "Killing";
/// A pod was evicted.
pub const EVICTED: &str = "Evicted";
/// A pod did not end within its grace period.
pub const EXCEEDED_GRACE_PERIOD: &str = "ExceededGracePeriod";
/// A pod is being preempted to make room for a critical one.
pub const PREEMPTING: &str = "Preempting";
/// A retry waits for its back-off.
pub const BACK_OFF: &str = "BackOff";
/// A `postStart` hook failed.
pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
/// A `preStop` hook failed.
pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
/// A hook was answered over plain HTTP instead of HTTPS.
pub const LIFECYCLE_HTTP_FALLBACK: &str = "LifecycleHTTPFallback";

/// An image pull has started.
pub const PULLING: &str = "Pulling";
/// An image was pulled or is already present.
pub const PULLED: &str = "Pulled";
/// An image cannot be inspected.
pub const INSPECT_FAILED: &str = "InspectFailed";
/// An image is not present and its pull policy is `Never`.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// Image pull secrets cannot be read.
pub const FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";

/// A pod's sandbox cannot be created.
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
/// The runtime does not return the status of a sandbox.
pub const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";
/// A pod's sandbox will be recreated.
pub const SANDBOX_CHANGED: &str = "SandboxChanged";
/// A pod cannot be stopped.
pub const FAILED_KILL_POD: &str = "FailedKillPod";
/// The devices of a pod's resource claims cannot be prepared.
pub const FAILED_PREPARE_DYNAMIC_RESOURCES: &str = "FailedPrepareDynamicResources";
/// A pod's status cannot be determined.
pub const FAILED_SYNC: &str = "FailedSync";
/// The pod network is not ready.
pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
/// A volume cannot be mounted.
pub const FAILED_MOUNT: &str = "FailedMount";
/// A block volume cannot be mapped.
pub const FAILED_MAP_VOLUME: &str = "FailedMapVolume";
/// A block volume was mapped.
pub const SUCCESSFUL_MOUNT_VOLUME: &str = "SuccessfulMountVolume";
/// The change of the ownership of a volume's files takes long.
pub const VOLUME_PERMISSION_CHANGE_IN_PROGRESS: &str = "VolumePermissionChangeInProgress";
/// A file system should be expanded, but is mounted read-only.
pub const FILE_SYSTEM_RESIZE_FAILED: &str = "FileSystemResizeFailed";
/// A file system was expanded.
pub const FILE_SYSTEM_RESIZE_SUCCESSFUL: &str = "FileSystemResizeSuccessful";
/// A CSI driver reports that a volume does not work properly.
pub const VOLUME_CONDITION_ABNORMAL: &str = "VolumeConditionAbnormal";
/// A pod has too many name servers or search domains.
pub const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
/// The node's `resolv.conf` exceeds the limits of resolvers, or cannot be read.
pub const CHECK_LIMITS_FOR_RESOLV_CONF: &str = "CheckLimitsForResolvConf";
/// A pod's DNS policy needs the cluster DNS, which is not configured.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// A resize is deferred until the node has enough resources.
pub const RESIZE_DEFERRED: &str = "ResizeDeferred";
/// The node can never satisfy a resize.
pub const RESIZE_INFEASIBLE: &str = "ResizeInfeasible";
/// A resize has started.
pub const RESIZE_STARTED: &str = "ResizeStarted";
/// A resize has completed.
pub const RESIZE_COMPLETED: &str = "ResizeCompleted";
/// A resize failed.
pub const RESIZE_ERROR: &str = "ResizeError";

/// A probe failed.
pub const UNHEALTHY: &str = "Unhealthy";
/// A probe succeeded with a warning.
pub const PROBE_WARNING: &str = "ProbeWarning";

/// The kubelet cannot start, and exits.
pub const KUBELET_SETUP_FAILED: &str = "KubeletSetupFailed";
/// The kubelet is starting.
pub const STARTING: &str = "Starting";
/// The node is ready to run pods.
pub const NODE_READY: &str = "NodeReady";
/// The node is not ready to run pods.
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// Pods can be scheduled to the node.
pub const NODE_SCHEDULABLE: &str = "NodeSchedulable";
/// Pods cannot be scheduled to the node.
pub const NODE_NOT_SCHEDULABLE: &str = "NodeNotSchedulable";
/// The node is shutting down, or the shutdown was cancelled.
pub const NODE_SHUTDOWN: &str = "Shutdown";
/// Limits of the node's cgroups were enforced.
pub const NODE_ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
/// Limits of the node's cgroups could not be enforced.
pub const FAILED_NODE_ALLOCATABLE_ENFORCEMENT: &str = "FailedNodeAllocatableEnforcement";
/// The cgroup of a pod could not be created.
pub const FAILED_TO_CREATE_POD_CONTAINER: &str = "FailedToCreatePodContainer";
/// Too little of a resource is available on the node.
pub const EVICTION_THRESHOLD_MET: &str = "EvictionThresholdMet";
/// Dead containers could not be removed.
pub const CONTAINER_GC_FAILED: &str = "ContainerGCFailed";
/// Unused images could not be removed, repeatedly.
pub const IMAGE_GC_FAILED: &str = "ImageGCFailed";
/// The removal of unused images did not free enough space.
pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
/// The image file system has no capacity.
pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
/// The node ran out of memory, and a process was killed.
pub const SYSTEM_OOM: &str = "SystemOOM";
/// Volumes in memory may be swapped to disk.
pub const POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK: &str = "PossibleMemoryBackedVolumesOnDisk";
/// The node was rebooted.
pub const REBOOTED: &str = "Rebooted";
