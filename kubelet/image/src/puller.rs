//! Pulls, as many at a time and as often as the node's configuration allows.

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

/// Pulls images; those that must wait do so in the order of their asking.
#[derive(Debug)]
pub(super) struct Puller {
    cri: CriClient,
    /// Pulls that may run at the same time; `None` without a limit.
    slots: Option<Semaphore>,
    /// Pulls that may begin; `None` without a limit.
    rate: Option<TokenBucket>,
}

/// A pull that is done.
#[derive(Debug)]
pub(super) struct Pulled {
    /// What the runtime names the image by.
    pub(super) id: String,
    /// What the registry let it be pulled with; `None` for nothing.
    pub(super) credential: Option<TrackedCredential>,
    /// How long it took, without the waiting for its turn.
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

    /// Pulls an image with the first of the credentials that the registry takes,
    /// or with none where there are none. `recorded` is told of each try.
    ///
    /// # Errors
    /// What each try failed for, as one text.
    pub(super) async fn pull(
        &self,
        spec: &ImageSpec,
        credentials: Vec<TrackedCredential>,
        sandbox_config: &PodSandboxConfig,
        recorded: &mut Pull<'_>,
    ) -> Result<Pulled, String> {
        let _slot = match &self.slots {
            // Never closed, so the permit is always had.
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
