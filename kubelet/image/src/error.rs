//! Why images cannot be had, in the words that a pod's status shows.

use std::{io, time::Duration};

use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::CriError;
use tonic::Code;

use super::{credentials::CredentialsError, reference::InvalidReference};

/// Reason of a pull that failed for nothing more particular.
const ERR_IMAGE_PULL: &str = "ErrImagePull";

/// Reasons that a runtime may begin its message with, and what they say.
const PARTICULAR: &[(&str, &str)] = &[
    ("RegistryUnavailable", "the registry is unavailable"),
    (
        "SignatureValidationFailed",
        "the signature validation failed",
    ),
];

/// Why a container or volume has no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// What the spec names is no image.
    #[error("Failed to apply default image tag {image:?}: {source}")]
    InvalidName {
        /// The image as the spec names it.
        image: String,
        /// What is wrong with it.
        source: InvalidReference,
    },
    /// The runtime cannot tell whether it has the image.
    #[error("Failed to inspect image {image:?}: {source}")]
    Inspect {
        /// The image as the spec names it.
        image: String,
        /// Why not.
        source: CriError,
    },
    /// It is not there, or not for this pod, and must not be pulled.
    #[error("Container image {0:?} is not present with pull policy of Never")]
    NeverPull(String),
    /// The pod's credentials cannot be read.
    #[error("Failed to read the credentials to pull image {image:?}: {source}")]
    Credentials {
        /// The image as the spec names it.
        image: String,
        /// Why not.
        source: CredentialsError,
    },
    /// The pull could not be recorded, and so was not begun.
    #[error("Failed to record image pull intent for container image {image:?}: {source}")]
    Record {
        /// The image as the spec names it.
        image: String,
        /// Why not.
        source: io::Error,
    },
    /// The pull failed.
    #[error("{}", .0.message)]
    Pull(PullFailure),
    /// The pull failed before and is not tried again yet.
    #[error("Back-off pulling image {image:?}: {}: {}", last.reason, last.message)]
    BackOff {
        /// The image as the spec names it.
        image: String,
        /// Why the last pull failed.
        last: PullFailure,
        /// After how long it is tried again.
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
    /// Records it as an event about `subject`, unless what is told of the container says
    /// enough.
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

    /// What an event about the container says of it.
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
    /// One word: `ErrImagePull`, or what the runtime says in particular.
    pub reason: &'static str,
    /// Details for people.
    pub message: String,
}

impl PullFailure {
    /// Reads the runtime's (or the kubelet's own) text about a failed pull.
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

/// An error of the runtime as gRPC clients written in Go show it. A code that says
/// nothing is left out, so that the runtime's own reason comes first.
pub(super) fn runtime_text(error: &CriError) -> String {
    match error {
        CriError::Status { status, .. } if status.code() == Code::Unknown => {
            status.message().to_owned()
        }
        _ => error.go_text(),
    }
}

/// One text of several errors, each once.
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
