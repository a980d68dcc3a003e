//! Names of the labels and annotations by which the kubelet knows its sandboxes
//! and containers again: upstream's.

/// Label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: UID of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: name of the container in its pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotation: hash of the parts of the container's spec that it must be
/// recreated for, in hexadecimal.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how often the container was restarted before.
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: CPU and memory that the container was created for, JSON of
/// `requests` and `limits`. The kubelet's own.
pub const CONTAINER_RESOURCES: &str = "io.kubernetes.container.allocatedResources";
/// Annotation: path in the container of its termination message.
pub const CONTAINER_TERMINATION_MESSAGE_PATH: &str =
    "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const CONTAINER_TERMINATION_MESSAGE_POLICY: &str =
    "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the `preStop` handler, JSON.
pub const CONTAINER_PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports, JSON.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: seconds that the deletion of the pod allows.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: seconds that the pod's spec allows for its termination.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
