//! Labels and annotations of the kubelet's sandboxes and containers, named as upstream's.

/// Label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: UID of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: name of the container in its pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: hash, in hexadecimal, of the part of the spec whose change requires a new
/// container.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: restart count.
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: CPU and memory that the container was created with, as JSON with `requests` and
/// `limits`. Not one of upstream's.
pub const CONTAINER_RESOURCES: &str = "io.kubernetes.container.allocatedResources";
/// Annotation: path of the termination message in the container.
pub const CONTAINER_TERMINATION_MESSAGE_PATH: &str =
    "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const CONTAINER_TERMINATION_MESSAGE_POLICY: &str =
    "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the `preStop` handler, JSON.
pub const CONTAINER_PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports, JSON.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: grace period of the pod's deletion in seconds.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: grace period of the pod's spec in seconds.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
