//! Images of containers and volumes: whether they are on the node, and getting them there.

pub mod reference;

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ImageSpec, PodSandboxConfig};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};
use tracing::info;

use crate::{
    backoff::Backoff,
    config::options::Options,
    pod::identity::PodUid,
    runtime::{
        cri::{CriClient, CriError},
        security_context::ImageUser,
    },
};

/// First and longest delay after failed pulls, as upstream.
const BACKOFF_BASE: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// Why a container has no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// What the spec names is no image.
    #[error("couldn't parse image name: {0}")]
    InvalidName(#[from] reference::InvalidReference),
    /// The runtime cannot tell whether it has the image.
    #[error("failed to inspect image {image:?}: {source}")]
    Inspect {
        /// The image as the spec names it.
        image: String,
        /// Why not.
        source: CriError,
    },
    /// It is not there, and must not be pulled.
    #[error("container image {0:?} is not present with pull policy of Never")]
    NeverPull(String),
    /// The pull failed.
    #[error("failed to pull image {image:?}: {source}")]
    Pull {
        /// The image as the spec names it.
        image: String,
        /// Why.
        source: CriError,
    },
    /// The pull failed before and is not tried again yet.
    #[error("back-off pulling image {image:?}: {last}")]
    BackOff {
        /// The image as the spec names it.
        image: String,
        /// Why the last pull failed.
        last: String,
        /// After how long it is tried again.
        retry_after: Duration,
    },
}

impl ImageError {
    /// The reason of the container's waiting state.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::InvalidName(_) => "InvalidImageName",
            Self::Inspect { .. } => "ImageInspectError",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Pull { .. } => "ErrImagePull",
            Self::BackOff { .. } => "ImagePullBackOff",
        }
    }
}

/// An image on the node.
#[derive(Clone, Debug)]
pub struct PresentImage {
    /// What the runtime names it by.
    pub id: String,
    /// The user that it runs as.
    pub user: ImageUser,
}

/// The failed pulls of one pod.
#[derive(Debug)]
pub struct PullBackoff {
    backoff: Backoff,
    /// The last failure of each image: when, and why.
    failures: std::collections::HashMap<String, (Instant, String)>,
}

impl Default for PullBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(BACKOFF_BASE, BACKOFF_MAX),
            failures: std::collections::HashMap::new(),
        }
    }
}

/// Gets images onto the node, by the pull policies of containers.
#[derive(Clone, Debug)]
pub struct ImageManager {
    cri: CriClient,
    /// Pulls that may run at the same time; `None` without a limit.
    pulls: Option<Arc<Semaphore>>,
}

impl ImageManager {
    /// A manager that pulls as many images at a time as `options` allow.
    pub fn new(cri: CriClient, options: &Options) -> Self {
        let limit = if options.serialize_image_pulls {
            Some(1)
        } else {
            options.max_parallel_image_pulls
        };
        Self {
            cri,
            pulls: limit.map(|limit| {
                let permits = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
                Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
            }),
        }
    }

    /// The image that a container or an image volume of the pod names, pulled if
    /// `policy` says so: `Always`, `Never`, or else `IfNotPresent`.
    ///
    /// # Errors
    /// See [`ImageError`]; each is tried again with the pod's next sync.
    pub async fn ensure(
        &self,
        pod: &Pod,
        requested: &str,
        policy: Option<&str>,
        sandbox_config: &PodSandboxConfig,
        backoff: &Mutex<PullBackoff>,
    ) -> Result<PresentImage, ImageError> {
        let name = reference::with_default_tag(requested)?;
        let spec = ImageSpec {
            image: name.clone(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            ..ImageSpec::default()
        };
        if policy != Some("Always") {
            if let Some(present) = self.present(requested, spec.clone()).await? {
                return Ok(present);
            }
            if policy == Some("Never") {
                return Err(ImageError::NeverPull(requested.to_owned()));
            }
        }
        check_backoff(backoff, requested, &name)?;
        let id = self
            .pull(pod, requested, &spec, sandbox_config, backoff)
            .await?;
        let pulled = ImageSpec {
            image: id.clone(),
            ..spec
        };
        // The user is part of the status, not of the pull.
        let present = self.present(requested, pulled).await?;
        Ok(PresentImage {
            id,
            user: present.map(|image| image.user).unwrap_or_default(),
        })
    }

    async fn present(
        &self,
        requested: &str,
        spec: ImageSpec,
    ) -> Result<Option<PresentImage>, ImageError> {
        let image = self
            .cri
            .image_status(spec)
            .await
            .map_err(|source| ImageError::Inspect {
                image: requested.to_owned(),
                source,
            })?;
        Ok(image.map(|image| PresentImage {
            id: image.id,
            user: ImageUser {
                uid: image.uid.map(|uid| uid.value),
                name: image.username,
            },
        }))
    }

    async fn pull(
        &self,
        pod: &Pod,
        requested: &str,
        spec: &ImageSpec,
        sandbox_config: &PodSandboxConfig,
        backoff: &Mutex<PullBackoff>,
    ) -> Result<String, ImageError> {
        let _permit = match &self.pulls {
            // Never closed, so the permit is always had.
            Some(pulls) => Some(pulls.acquire().await),
            None => None,
        };
        let begun = Instant::now();
        let pulled = self
            .cri
            .pull_image(spec.clone(), None, sandbox_config.clone())
            .await;
        match pulled {
            Ok(id) => {
                info!(
                    pod_uid = %PodUid::of(pod), image = requested,
                    seconds = begun.elapsed().as_secs_f32(), "pulled image"
                );
                let mut backoff = backoff.lock();
                backoff.failures.remove(&spec.image);
                backoff.backoff.forget(&spec.image);
                Ok(id)
            }
            Err(source) => {
                let now = Instant::now();
                let mut backoff = backoff.lock();
                backoff.backoff.attempt(&spec.image, now);
                let failure = (now, source.to_string());
                backoff.failures.insert(spec.image.clone(), failure);
                Err(ImageError::Pull {
                    image: requested.to_owned(),
                    source,
                })
            }
        }
    }
}

fn check_backoff(
    backoff: &Mutex<PullBackoff>,
    requested: &str,
    name: &str,
) -> Result<(), ImageError> {
    let backoff = backoff.lock();
    let Some((failed, last)) = backoff.failures.get(name) else {
        return Ok(());
    };
    match backoff.backoff.remaining(name, *failed) {
        None => Ok(()),
        Some((retry_after, _)) => Err(ImageError::BackOff {
            image: requested.to_owned(),
            last: last.clone(),
            retry_after,
        }),
    }
}
