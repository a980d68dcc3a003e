//! The table columns of each kind, as upstream defines them.

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    /// The heading.
    pub(super) name: &'static str,
    /// `string`, `integer` or `boolean`.
    pub(super) kind: &'static str,
    /// 0: always shown; 1: shown with `-o wide`.
    pub(super) priority: u8,
    /// The description.
    pub(super) description: &'static str,
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        priority: 0,
        description,
    }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    let mut column = column(name, description);
    column.priority = 1;
    column
}

const fn number(name: &'static str, description: &'static str) -> Column {
    let mut column = column(name, description);
    column.kind = "integer";
    column
}

const fn truth(name: &'static str, description: &'static str) -> Column {
    let mut column = column(name, description);
    column.kind = "boolean";
    column
}

const NAME: Column = column("Name", "The object's name.");
const AGE: Column = column("Age", "How long ago the object was created.");

/// The columns of a kind.
pub(super) fn of(kind: &str) -> &'static [Column] {
    match kind {
        "Pod" => {
            const {
                &[
                    NAME,
                    column("Ready", "Containers that are ready, of all."),
                    column("Status", "The state of the containers together."),
                    column("Restarts", "How often containers restarted."),
                    AGE,
                    wide("IP", "The pod's address."),
                    wide("Node", "The node that the pod is bound to."),
                    wide("Nominated Node", "The node that the pod may be bound to."),
                    wide("Readiness Gates", "Gates that are open, of all."),
                ]
            }
        }
        "Node" => {
            const {
                &[
                    NAME,
                    column("Status", "Whether the node is ready and takes pods."),
                    column("Roles", "The roles that its labels name."),
                    AGE,
                    column("Version", "The kubelet's version."),
                    wide("Internal-IP", "The first internal address."),
                    wide("External-IP", "The first external address."),
                    wide("OS-Image", "The operating system."),
                    wide("Kernel-Version", "The kernel."),
                    wide("Container-Runtime", "The container runtime."),
                ]
            }
        }
        "Event" => {
            const {
                &[
                    column("Last Seen", "When it last happened."),
                    column("Type", "Normal or Warning."),
                    column("Reason", "What happened, for machines."),
                    column("Object", "What it happened to."),
                    wide("Subobject", "Which part of it."),
                    wide("Source", "Who reports it."),
                    column("Message", "What happened, for people."),
                    wide("First Seen", "When it first happened."),
                    wide("Count", "How often it happened."),
                    wide("Name", "The event's name."),
                ]
            }
        }
        "Namespace" => const { &[NAME, column("Status", "The namespace's phase."), AGE] },
        "Secret" => {
            const {
                &[
                    NAME,
                    column("Type", "What kind of secret it is."),
                    column("Data", "How many entries it has."),
                    AGE,
                ]
            }
        }
        "ConfigMap" => const { &[NAME, column("Data", "How many entries it has."), AGE] },
        "ServiceAccount" => const { &[NAME, AGE] },
        "Service" => {
            const {
                &[
                    NAME,
                    column("Type", "How the service is reached."),
                    column("Cluster-IP", "Its address in the cluster."),
                    column("External-IP", "Its addresses outside."),
                    column("Port(s)", "Its ports."),
                    AGE,
                    wide("Selector", "The labels of its pods."),
                ]
            }
        }
        "Lease" => const { &[NAME, column("Holder", "Who holds it."), AGE] },
        "CertificateSigningRequest" => {
            const {
                &[
                    NAME,
                    AGE,
                    column("SignerName", "Who is to sign it."),
                    column("Requestor", "Who asked for it."),
                    column("RequestedDuration", "How long the certificate is to last."),
                    column("Condition", "What was decided."),
                ]
            }
        }
        "DaemonSet" => {
            const {
                &[
                    NAME,
                    number("Desired", "Nodes that should run the pod."),
                    number("Current", "Nodes that run it."),
                    number("Ready", "Nodes where it is ready."),
                    number("Up-to-date", "Nodes where it is of the newest template."),
                    number("Available", "Nodes where it is available."),
                    column("Node Selector", "Which nodes should run it."),
                    AGE,
                    wide("Containers", "The template's containers."),
                    wide("Images", "Their images."),
                    wide("Selector", "The labels of its pods."),
                ]
            }
        }
        "PersistentVolume" => {
            const {
                &[
                    NAME,
                    column("Capacity", "Its size."),
                    column("Access Modes", "How it can be mounted."),
                    column("Reclaim Policy", "What happens to it after its claim."),
                    column("Status", "The volume's phase."),
                    column("Claim", "Whose it is."),
                    column("StorageClass", "Its storage class."),
                    column("VolumeAttributesClass", "Its class of attributes."),
                    column("Reason", "Why it is in its phase."),
                    AGE,
                    wide("VolumeMode", "Filesystem or Block."),
                ]
            }
        }
        "PersistentVolumeClaim" => {
            const {
                &[
                    NAME,
                    column("Status", "The claim's phase."),
                    column("Volume", "The volume that it is bound to."),
                    column("Capacity", "Its size."),
                    column("Access Modes", "How it can be mounted."),
                    column("StorageClass", "Its storage class."),
                    column("VolumeAttributesClass", "Its class of attributes."),
                    AGE,
                    wide("VolumeMode", "Filesystem or Block."),
                ]
            }
        }
        "RuntimeClass" => const { &[NAME, column("Handler", "The runtime's handler."), AGE] },
        "CSINode" => const { &[NAME, number("Drivers", "How many drivers it has."), AGE] },
        "CSIDriver" => {
            const {
                &[
                    NAME,
                    truth("AttachRequired", "Whether volumes must be attached."),
                    truth("PodInfoOnMount", "Whether it gets information about pods."),
                    truth("StorageCapacity", "Whether it reports capacity."),
                    column("TokenRequests", "Audiences of tokens that it gets."),
                    truth("RequiresRepublish", "Whether it is called again and again."),
                    column("Modes", "Persistent or Ephemeral."),
                    AGE,
                ]
            }
        }
        "VolumeAttachment" => {
            const {
                &[
                    NAME,
                    column("Attacher", "The driver."),
                    column("PV", "The volume."),
                    column("Node", "The node."),
                    truth("Attached", "Whether it is attached."),
                    AGE,
                ]
            }
        }
        "ClusterTrustBundle" => const { &[NAME, column("SignerName", "Whose bundle it is.")] },
        // Upstream's default for kinds without columns of their own.
        _ => const { &[NAME, column("Created At", "When the object was created.")] },
    }
}
