//! Why the devices of claims cannot be used.

use std::time::Duration;

use kubelet_api_client::objects::ObjectError;

/// Why the devices of a pod's claims cannot be prepared, or that cannot be undone. In upstream's words
/// where it has some.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraError {
    /// The claim of a template does not exist yet.
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
    },
    /// An entry of `spec.resourceClaims` names neither a claim nor a template.
    #[error(
        "pod \"{namespace}/{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set"
    )]
    Unsupported {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The name of the entry.
        claim: String,
    },
    /// The claim cannot be read.
    #[error("fetch ResourceClaim {name}: {source}")]
    Fetch {
        /// The claim's name.
        name: String,
        /// The cause.
        source: ObjectError,
    },
    /// The claim was made for another pod.
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    OfAnother {
        /// The claim, with its namespace.
        claim: String,
        /// The pod, with its namespace.
        pod: String,
    },
    /// The claim is not reserved for the pod.
    #[error("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// The pod's name.
        pod: String,
        /// The pod's UID.
        pod_uid: String,
        /// The claim's name.
        claim: String,
        /// The claim's UID.
        claim_uid: String,
    },
    /// The claim has no devices.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// Another claim had this name, and a pod still uses it.
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod \
         force-deleted?!)"
    )]
    Replaced {
        /// The name of both.
        name: String,
        /// The UID of the earlier one.
        uid: String,
    },
    /// No driver of this name runs on the node.
    #[error("DRA driver {0} is not registered")]
    NoDriver(String),
    /// A driver failed.
    #[error("{method}: DRA driver {driver}: {message}")]
    Call {
        /// The driver's name.
        driver: String,
        /// The method.
        method: &'static str,
        /// The driver's message.
        message: String,
    },
    /// A driver did not answer.
    #[error("{method}: DRA driver {driver} did not answer within {limit:?}")]
    Deadline {
        /// The driver's name.
        driver: String,
        /// The method.
        method: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// A driver failed for one claim.
    #[error("{method} failed for ResourceClaim {claim}: {message}")]
    Claim {
        /// The claim's name.
        claim: String,
        /// The method.
        method: &'static str,
        /// The driver's message.
        message: String,
    },
    /// A driver's answer is invalid.
    #[error("{method}: DRA driver {driver} returned an invalid answer: {rule}")]
    Answer {
        /// The driver's name.
        driver: String,
        /// The method.
        method: &'static str,
        /// The field, and what is wrong with it.
        rule: String,
    },
    /// A driver left claims out.
    #[error("{method} skipped {count} ResourceClaims")]
    Skipped {
        /// The method.
        method: &'static str,
        /// How many.
        count: usize,
    },
    /// The claim of a container was not prepared.
    #[error("unable to get claim info for ResourceClaim {name} in namespace {namespace}")]
    Unprepared {
        /// The claim's namespace.
        namespace: String,
        /// The claim's name.
        name: String,
    },
    /// Which pods use which claims cannot be saved.
    #[error("checkpoint ResourceClaim state: {0}")]
    Save(String),
}
