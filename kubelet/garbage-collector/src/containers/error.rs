//! Why a collection of containers fails.

use kubelet_cri_client::CriError;

/// Why a collection of containers failed. What was removed before stays removed.
///
/// A container or sandbox that cannot be removed is logged and retried; it is not an error, as
/// upstream.
#[derive(Debug, thiserror::Error)]
pub enum ContainerGcError {
    /// The runtime does not report which containers and sandboxes exist.
    #[error("cannot list the containers and sandboxes: {0}")]
    List(#[source] CriError),
    /// A removal failed because the runtime no longer answers.
    #[error("the runtime ceased to answer during the removal of containers: {0}")]
    Away(#[source] CriError),
}
