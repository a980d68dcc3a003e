//! Image manager. Checks whether the images of containers and image volumes are on the node, and
//! pulls them as their pull policies require.

#![forbid(unsafe_code)]

pub mod credentials;
pub mod error;
mod metrics;
mod options;
pub mod pull_backoff;
pub mod pull_records;
mod pull_sizes;
mod pull_time;
mod puller;

use std::{path::Path, sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ImageSpec, PodSandboxConfig};
use go_duration::GoDuration;
use image_reference::ImageReference;
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::{
    events::{EventRecorder, Subject, reason},
    objects::Objects,
};
use kubelet_cri_client::CriClient;
use kubelet_metrics::{Collector, Exposition};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use self::{
    credentials::{Credentials, TrackedCredential},
    error::PullFailure,
    metrics::{CheckResult, ImageMetrics},
    pull_backoff::PullUnderWay,
    pull_records::{Access, PullRecords},
    puller::{Pulled, Puller},
};
pub use self::{error::ImageError, options::ImageOptions, pull_backoff::PullBackoff};

/// The user that an image is configured to run as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// Numeric UID, if the image sets one.
    pub uid: Option<i64>,
    /// User name, if the image sets one; otherwise empty.
    pub name: String,
}

/// An image on the node.
#[derive(Clone, Debug)]
pub struct PresentImage {
    /// The runtime's ID of the image.
    pub id: String,
    /// The configured user.
    pub user: ImageUser,
    /// Size on disk, in bytes.
    pub size: u64,
}

/// Makes images available on the node according to pull policies.
#[derive(Debug)]
pub struct ImageManager {
    cri: CriClient,
    puller: Puller,
    credentials: Credentials,
    records: PullRecords,
    events: EventRecorder,
    metrics: ImageMetrics,
}

/// A request for an image.
struct Wanted<'a> {
    pod: &'a Pod,
    /// The object that events are recorded for.
    subject: Subject<'a>,
    /// The image as written in the spec.
    requested: &'a str,
    /// The full name of the image's repository.
    repository: String,
    spec: ImageSpec,
}

impl ImageManager {
    /// A manager that pulls within the limits of `options`, with credentials from the secrets in
    /// `objects`, the node and the credential provider plugins. It keeps pull records below
    /// `root_dir` and sends events to `events`.
    pub fn new(
        cri: CriClient,
        options: &ImageOptions,
        root_dir: &Path,
        objects: Arc<dyn Objects>,
        events: EventRecorder,
    ) -> Self {
        let metrics = ImageMetrics::new();
        Self {
            puller: Puller::new(cri.clone(), options),
            credentials: Credentials::new(
                root_dir,
                &options.credential_providers,
                metrics.plugins(),
                objects,
                events.clone(),
            ),
            records: PullRecords::new(root_dir, options.verification_policy.clone()),
            cri,
            events,
            metrics,
        }
    }

    /// Recovers the pulls that the previous kubelet on this node left unfinished. Must be called
    /// once, when the runtime is available and before the first pod is synced.
    pub async fn restore(&self) {
        let begun = self.records.begun().await;
        if begun.is_empty() {
            return;
        }
        match self.cri.list_images().await {
            Ok(images) => self.records.restore(begun, &images).await,
            Err(error) => {
                warn!(
                    %error,
                    "cannot list images; leaving the records of unfinished pulls unchanged"
                );
            }
        }
    }

    /// Forgets who may use an image that was removed, unless it is there again: an image without
    /// records looks preloaded, and every pod may use it.
    pub async fn forget(&self, id: &str) {
        let Some(pulls) = self.records.completed_pulls() else {
            return;
        };
        let spec = ImageSpec {
            image: id.to_owned(),
            ..ImageSpec::default()
        };
        if let Ok(None) = self.cri.image_status(spec).await {
            self.records.forget(id, pulls).await;
        }
    }

    /// Forgets who may use images that are gone, no matter who removed them: if such an image is
    /// preloaded again, every pod may use it.
    pub async fn forget_absent(&self) {
        let Some(pulls) = self.records.completed_pulls() else {
            return;
        };
        match self.cri.list_images().await {
            Ok(images) => {
                // Runtimes may call a pulled image by a digest.
                let names = images
                    .into_iter()
                    .flat_map(|image| image.repo_digests.into_iter().chain([image.id]));
                let present = names.collect();
                self.records.forget_all_but(present, pulls).await;
            }
            Err(error) => debug!(%error, "cannot list images; keeping the records of pulls"),
        }
    }

    /// Returns the image that a container or, without one, an image volume of the pod refers to.
    /// Pulls the image if required by `policy`: `Always`, `Never`, otherwise `IfNotPresent`.
    ///
    /// # Errors
    /// See [`ImageError`]; each is retried with the pod's next sync.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: Option<&str>,
        requested: &str,
        policy: Option<&str>,
        sandbox_config: &PodSandboxConfig,
        backoff: &Mutex<PullBackoff>,
    ) -> Result<PresentImage, ImageError> {
        let subject = match container {
            Some(container) => Subject::Container(pod, container),
            None => Subject::Pod(pod),
        };
        // Boxed: the future is large and would take stack in the future of every container start.
        let ensure = self.ensure_for(pod, subject, requested, policy, sandbox_config, backoff);
        Box::pin(ensure)
            .await
            .inspect_err(|error| error.record(&self.events, subject))
    }

    async fn ensure_for(
        &self,
        pod: &Pod,
        subject: Subject<'_>,
        requested: &str,
        policy: Option<&str>,
        sandbox_config: &PodSandboxConfig,
        backoff: &Mutex<PullBackoff>,
    ) -> Result<PresentImage, ImageError> {
        let mut request = self.metrics.request(policy);
        let reference =
            ImageReference::parse(requested).map_err(|source| ImageError::InvalidName {
                image: requested.to_owned(),
                source,
            })?;
        let wanted = Wanted {
            pod,
            subject,
            requested,
            repository: reference.repository(),
            spec: ImageSpec {
                image: reference.with_default_tag(),
                annotations: pod.metadata.annotations.clone().unwrap_or_default(),
                ..ImageSpec::default()
            },
        };
        let mut credentials = None;
        if policy != Some("Always") {
            let found = self.present(&wanted, wanted.spec.clone()).await?;
            request.is_present = Some(found.is_some());
            if let Some((present, names)) = found {
                let may_use = self
                    .may_use(&wanted, &present, names, &mut credentials)
                    .await?;
                request.is_pulled = Some(!may_use);
                if may_use {
                    self.events.normal(
                        subject,
                        reason::PULLED,
                        format_args!(
                            "Container image {requested:?} already present on machine and can be \
                             accessed by the pod"
                        ),
                    );
                    return Ok(present);
                }
            }
            // The pod must not learn whether the image is absent or only inaccessible to it.
            if policy == Some("Never") {
                return Err(ImageError::NeverPull(requested.to_owned()));
            }
        }
        request.is_pulled = Some(true);
        backoff.lock().check(requested)?;
        let credentials = match credentials {
            Some(known) => known,
            None => self.look_up(&wanted).await?,
        };
        self.pull(&wanted, credentials, sandbox_config, backoff)
            .await
    }

    /// The image and all its names, if the runtime has it.
    async fn present(
        &self,
        wanted: &Wanted<'_>,
        spec: ImageSpec,
    ) -> Result<Option<(PresentImage, Vec<String>)>, ImageError> {
        let image = self
            .cri
            .image_status(spec)
            .await
            .map_err(|source| ImageError::Inspect {
                image: wanted.requested.to_owned(),
                source,
            })?;
        Ok(image.map(|image| {
            let present = PresentImage {
                id: image.id,
                user: ImageUser {
                    uid: image.uid.map(|uid| uid.value),
                    name: image.username,
                },
                size: image.size,
            };
            (present, [image.repo_tags, image.repo_digests].concat())
        }))
    }

    /// Checks whether the pod may use an image that is on the node. Credentials that are looked up
    /// for the check are returned in `credentials`.
    async fn may_use(
        &self,
        wanted: &Wanted<'_>,
        present: &PresentImage,
        names: Vec<String>,
        credentials: &mut Option<Vec<TrackedCredential>>,
    ) -> Result<bool, ImageError> {
        let (image, id) = (wanted.requested, &present.id);
        let result = match self.records.access(image, id, names).await {
            Access::Unverified => CheckResult::PolicyAllows,
            Access::Granted => CheckResult::RecordFound,
            Access::MustPull => CheckResult::MustAuthenticate,
            Access::Unreadable => CheckResult::Error,
            Access::Holders(holders) => {
                let held = self.look_up(wanted).await;
                let held = held.inspect_err(|_| self.metrics.checked(CheckResult::Error))?;
                let held = credentials.insert(held);
                if self.records.is_held(image, id, &holders, held).await {
                    CheckResult::RecordFound
                } else {
                    CheckResult::MustAuthenticate
                }
            }
        };
        self.metrics.checked(result);
        Ok(matches!(
            result,
            CheckResult::PolicyAllows | CheckResult::RecordFound
        ))
    }

    async fn look_up(&self, wanted: &Wanted<'_>) -> Result<Vec<TrackedCredential>, ImageError> {
        self.credentials
            .lookup(wanted.pod, &wanted.repository)
            .await
            .map_err(|source| ImageError::Credentials {
                image: wanted.requested.to_owned(),
                source,
            })
    }

    async fn pull(
        &self,
        wanted: &Wanted<'_>,
        credentials: Vec<TrackedCredential>,
        sandbox_config: &PodSandboxConfig,
        backoff: &Mutex<PullBackoff>,
    ) -> Result<PresentImage, ImageError> {
        let image = wanted.requested;
        if self.records.is_in_doubt(image).await
            && let Some((present, _)) = self.present(wanted, wanted.spec.clone()).await?
        {
            self.records.settle(image, &present.id).await;
        }
        let mut recorded =
            self.records
                .begin(image)
                .await
                .map_err(|source| ImageError::Record {
                    image: image.to_owned(),
                    source,
                })?;
        info!(image, "pulling image");
        self.events.normal(
            wanted.subject,
            reason::PULLING,
            format_args!("Pulling image {image:?}"),
        );
        let begun = Instant::now();
        let under_way = PullUnderWay::of(backoff);
        let pull = self
            .puller
            .pull(&wanted.spec, credentials, sandbox_config, &mut recorded)
            .await;
        drop(under_way);
        let pulled = match pull {
            Ok(pulled) => pulled,
            Err(text) => {
                let message = format_args!("Failed to pull image {image:?}: {text}");
                self.events.warning(wanted.subject, reason::FAILED, message);
                let failure = PullFailure::new(image, text);
                backoff.lock().failed(image, failure.clone());
                return Err(ImageError::Pull(failure));
            }
        };
        let waited = begun.elapsed();
        recorded.done(&pulled.id, pulled.credential.as_ref()).await;
        backoff.lock().succeeded(image);
        let spec = ImageSpec {
            image: pulled.id.clone(),
            ..wanted.spec.clone()
        };
        // The user and the size are in the image status, not in the pull response.
        let status = self.present(wanted, spec).await;
        let size = match &status {
            Ok(Some((present, _))) => present.size,
            _ => 0,
        };
        self.report_pull(wanted, &pulled, waited, size);
        Ok(PresentImage {
            user: status?.map(|(present, _)| present.user).unwrap_or_default(),
            id: pulled.id,
            size,
        })
    }

    /// Measures, logs and records a pull that succeeded. `waited` includes the wait for its turn.
    fn report_pull(&self, wanted: &Wanted<'_>, pulled: &Pulled, waited: Duration, size: u64) {
        let image = wanted.requested;
        self.metrics.pulled(size, waited);
        info!(
            image,
            image_id = pulled.id,
            seconds = pulled.took.as_secs_f32(),
            seconds_with_waiting = waited.as_secs_f32(),
            bytes = size,
            "pulled image"
        );
        self.events.normal(
            wanted.subject,
            reason::PULLED,
            format_args!(
                "Successfully pulled image {image:?} in {} ({} including waiting). Image size: \
                 {size} bytes.",
                GoDuration::whole_millis(pulled.took),
                GoDuration::whole_millis(waited)
            ),
        );
    }
}

impl Collector for ImageManager {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}
