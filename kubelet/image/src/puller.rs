//! Image pulls within the configured limits on parallelism and rate.

use std::time::Duration;

use cri_proto::runtime::v1::{AuthConfig, ImageSpec, PodSandboxConfig};
use kubelet_cri_client::CriClient;
use kubelet_pacing::token_bucket::TokenBucket;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    credentials::TrackedCredential,
    error::{runtime_text, together},
    options::ImageOptions,
    pull_records::Pull,
};

/// Pulls images. Waiting pulls are served in FIFO order.
#[derive(Debug)]
pub(super) struct Puller {
    cri: CriClient,
    /// Slots for parallel pulls; `None` if unlimited.
    slots: Option<Semaphore>,
    /// Limit on the rate of pulls; `None` if unlimited.
    rate: Option<TokenBucket>,
}

/// A completed pull.
#[derive(Debug)]
pub(super) struct Pulled {
    /// The runtime's ID of the image.
    pub(super) id: String,
    /// The credential that the registry accepted; `None` if it needed none.
    pub(super) credential: Option<TrackedCredential>,
    /// Duration, without the wait for a slot.
    pub(super) took: Duration,
}

impl Puller {
    pub(super) fn new(cri: CriClient, options: &ImageOptions) -> Self {
        let limit = if options.serialize_pulls {
            Some(1)
        } else {
            options.max_parallel_pulls.filter(|limit| *limit > 0)
        };
        Self {
            cri,
            slots: limit.map(|limit| {
                let permits = usize::try_from(limit).unwrap_or(usize::MAX);
                Semaphore::new(permits.min(Semaphore::MAX_PERMITS))
            }),
            rate: (options.registry_qps > 0)
                .then(|| TokenBucket::new(options.registry_qps, options.registry_burst)),
        }
    }

    /// Pulls an image. Tries the credentials in order until the registry accepts one; without
    /// credentials, pulls anonymously. Each attempt is reported to `recorded`.
    ///
    /// # Errors
    /// The errors of all attempts, or that the rate limit is exceeded, as one text.
    pub(super) async fn pull(
        &self,
        spec: &ImageSpec,
        credentials: Vec<TrackedCredential>,
        sandbox_config: &PodSandboxConfig,
        recorded: &mut Pull<'_>,
    ) -> Result<Pulled, String> {
        let _slot = match &self.slots {
            // The semaphore is never closed, so a permit is always granted.
            Some(slots) => Some(slots.acquire().await),
            None => None,
        };
        if self.rate.as_ref().is_some_and(|rate| !rate.try_take()) {
            return Err("pull QPS exceeded".to_owned());
        }
        let begun = Instant::now();
        let tries: Vec<Option<TrackedCredential>> = if credentials.is_empty() {
            vec![None]
        } else {
            credentials.into_iter().map(Some).collect()
        };
        let mut errors = Vec::new();
        for credential in tries {
            let auth = credential.as_ref().map(|tracked| AuthConfig {
                username: tracked.credential.username.clone(),
                password: tracked.credential.password.clone(),
                ..AuthConfig::default()
            });
            let pull = self
                .cri
                .pull_image(spec.clone(), auth, sandbox_config.clone());
            recorded.asks(credential.as_ref());
            match pull.await {
                Ok(id) => {
                    return Ok(Pulled {
                        id,
                        credential,
                        took: begun.elapsed(),
                    });
                }
                Err(error) => {
                    if error.is_answer() {
                        recorded.failed(credential.as_ref());
                    }
                    errors.push(runtime_text(&error));
                }
            }
        }
        Err(together(errors))
    }
}
