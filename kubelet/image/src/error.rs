//! Image errors, with the reasons and messages that the pod's status shows.

use std::{io, time::Duration};

use image_reference::InvalidReference;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::CriError;
use tonic::Code;

use super::credentials::CredentialsError;

/// Default reason of a failed pull.
const ERR_IMAGE_PULL: &str = "ErrImagePull";

/// Reasons that a runtime's message may start with, and their descriptions.
const PARTICULAR: &[(&str, &str)] = &[
    ("RegistryUnavailable", "the registry is unavailable"),
    (
        "SignatureValidationFailed",
        "the signature validation failed",
    ),
];

/// Why the image of a container or volume is not available.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image reference in the spec is invalid.
    #[error(
        "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid \
         reference format: {source}"
    )]
    InvalidName {
        /// The image as written in the spec.
        image: String,
        /// What is wrong with it.
        source: InvalidReference,
    },
    /// The runtime failed to report the image's status.
    #[error("Failed to inspect image {image:?}: {source}")]
    Inspect {
        /// The image as written in the spec.
        image: String,
        /// The cause.
        source: CriError,
    },
    /// The image is absent or inaccessible to the pod, and the pull policy is `Never`.
    #[error("Container image {0:?} is not present with pull policy of Never")]
    NeverPull(String),
    /// The pod's credentials cannot be read.
    #[error("Failed to read the credentials to pull image {image:?}: {source}")]
    Credentials {
        /// The image as written in the spec.
        image: String,
        /// The cause.
        source: CredentialsError,
    },
    /// The pull intent could not be recorded, so the pull was not started.
    #[error("Failed to record image pull intent for container image {image:?}: {source}")]
    Record {
        /// The image as written in the spec.
        image: String,
        /// The cause.
        source: io::Error,
    },
    /// The pull failed.
    #[error("{}", .0.message)]
    Pull(PullFailure),
    /// An earlier pull failed, and its back-off has not expired.
    #[error("Back-off pulling image {image:?}: {}: {}", last.reason, last.message)]
    BackOff {
        /// The image as written in the spec.
        image: String,
        /// The last failure.
        last: PullFailure,
        /// Time until the next attempt.
        retry_after: Duration,
    },
}

impl ImageError {
    /// The reason of the container's waiting state.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::InvalidName { .. } => "InvalidImageName",
            Self::Inspect { .. } => "ImageInspectError",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Credentials { .. } | Self::Record { .. } => ERR_IMAGE_PULL,
            Self::Pull(failure) => failure.reason,
            Self::BackOff { .. } => "ImagePullBackOff",
        }
    }
}

impl ImageError {
    /// Records the error as an event about `subject`. Skips errors that have their own event or are
    /// covered by the container's event.
    pub(super) fn record(&self, events: &EventRecorder, subject: Subject<'_>) {
        match self {
            Self::InvalidName { .. } | Self::Inspect { .. } => {
                events.warning(subject, reason::INSPECT_FAILED, self);
            }
            Self::NeverPull(_) => events.warning(subject, reason::ERR_IMAGE_NEVER_PULL, self),
            Self::BackOff { image, .. } => events.normal(
                subject,
                reason::BACK_OFF,
                format_args!("Back-off pulling image {image:?}"),
            ),
            Self::Credentials { .. } | Self::Record { .. } | Self::Pull(_) => {}
        }
    }

    /// The text for the container's event.
    pub fn summary(&self) -> String {
        match self {
            Self::Credentials { .. } | Self::Record { .. } => self.to_string(),
            _ => self.reason().to_owned(),
        }
    }
}

/// Why a pull failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFailure {
    /// `ErrImagePull`, or a more specific reason from the runtime.
    pub reason: &'static str,
    /// Human-readable details.
    pub message: String,
}

impl PullFailure {
    /// Parses the error text of a failed pull, from the runtime or from the kubelet itself.
    pub fn new(image: &str, text: String) -> Self {
        let particular = PARTICULAR
            .iter()
            .find_map(|(reason, what)| Some((*reason, *what, text.strip_prefix(reason)?)));
        match particular {
            Some((reason, what, details)) => Self {
                reason,
                message: format!("image pull failed for {image} because {what}{details}"),
            },
            None => Self {
                reason: ERR_IMAGE_PULL,
                message: text,
            },
        }
    }
}

/// A runtime error in the format of Go's gRPC client. The code `Unknown` is left out, so that the
/// runtime's own reason comes first.
pub(super) fn runtime_text(error: &CriError) -> String {
    match error {
        CriError::Status { status, .. } if status.code() == Code::Unknown => {
            status.message().to_owned()
        }
        _ => error.go_text(),
    }
}

/// Joins errors into one text, without duplicates.
pub(super) fn together(mut errors: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match errors.as_slice() {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn particular_reasons_are_told_apart() {
        for (text, reason, message) in [
            (
                "RegistryUnavailable: no route",
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: no route",
            ),
            (
                "SignatureValidationFailed",
                "SignatureValidationFailed",
                "image pull failed for a:1 because the signature validation failed",
            ),
            ("pull QPS exceeded", "ErrImagePull", "pull QPS exceeded"),
            (
                "rpc error: RegistryUnavailable",
                "ErrImagePull",
                "rpc error: RegistryUnavailable",
            ),
        ] {
            let message = message.to_owned();
            assert_eq!(
                PullFailure::new("a:1", text.to_owned()),
                PullFailure { reason, message }
            );
        }
    }

    #[test]
    fn several_errors_are_one_text() {
        let errors = |texts: &[&str]| together(texts.iter().map(ToString::to_string).collect());
        assert_eq!(errors(&["a"]), "a");
        assert_eq!(errors(&["a", "a"]), "a");
        assert_eq!(errors(&["a", "b", "a"]), "[a, b]");
    }
}
