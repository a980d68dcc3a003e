//! Manages one certificate of this node: requests, stores and renews it.

use std::{path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use kubelet_host::{clock, repeatable};
use retry_delay::RetryDelay;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    metrics::RenewalMetrics,
    pair::{Pair, PairError, PairReceiver},
    request::{RequestError, Signer, SigningRequest, Template, new_key, renewal},
    store::{PairStore, StoreError},
};

/// How long a request may stay pending, as upstream.
const DECISION: Duration = Duration::from_secs(15 * 60);
/// Delay before the first retry; it doubles with each further one, as upstream.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_secs(32);
/// Pause after a certificate was issued, before the next request.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval of checks, as the wall clock may jump and machines may be suspended.
const LOOK: Duration = Duration::from_secs(600);

/// The signer of client certificates for the API server.
pub const CLIENT_SIGNER: Signer = Signer {
    name: "kubernetes.io/kube-apiserver-client-kubelet",
    usages: &["digital signature", "client auth"],
};
/// The signer of serving certificates.
pub const SERVING_SIGNER: Signer = Signer {
    name: "kubernetes.io/kubelet-serving",
    usages: &["digital signature", "server auth"],
};

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There is no client for the request.
    #[error("{0}")]
    Client(String),
    /// The issued certificate does not match the key.
    #[error("the issued certificate is unusable: {0}")]
    Pair(#[from] PairError),
    /// The certificate cannot be stored.
    #[error("cannot store the certificate: {0}")]
    Store(#[from] StoreError),
    /// The kubelet is shutting down.
    #[error("stopped")]
    Stopped,
}

/// Returns the client for a certificate request. The argument says whether the current certificate
/// is valid.
pub type ClientSource =
    Box<dyn Fn(bool) -> BoxFuture<'static, Result<Client, String>> + Send + Sync>;

/// Manages one certificate of this node.
pub struct CertificateManager {
    signer: Signer,
    store: PairStore,
    template: watch::Receiver<Option<Template>>,
    client: ClientSource,
    current: watch::Sender<Option<Arc<Pair>>>,
    /// Renew the current certificate at once.
    force: bool,
    /// Where in the renewal window the certificate is renewed, from 0 to 1.
    share: f64,
    renewals: Option<Arc<RenewalMetrics>>,
}

impl std::fmt::Debug for CertificateManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateManager")
            .field("signer", &self.signer.name)
            .finish_non_exhaustive()
    }
}

impl CertificateManager {
    /// Manages the certificates that `signer` issues, in `store`. Nothing is requested while there
    /// is no `template`. A certificate that does not satisfy a changed template is renewed at once.
    pub fn new(
        signer: Signer,
        store: PairStore,
        template: watch::Receiver<Option<Template>>,
        client: ClientSource,
    ) -> Self {
        Self {
            signer,
            store,
            template,
            client,
            current: watch::Sender::new(None),
            force: false,
            share: share(),
            renewals: None,
        }
    }

    /// Counts renewals in `renewals`.
    pub fn counted(mut self, renewals: Arc<RenewalMetrics>) -> Self {
        self.renewals = Some(renewals);
        self
    }

    /// Manages the serving certificate in `cert_dir`, requested with `client` for the names and
    /// addresses of `template`.
    pub fn serving(
        cert_dir: &Path,
        template: watch::Receiver<Option<Template>>,
        client: Client,
    ) -> Self {
        let client: ClientSource = Box::new(move |_| {
            let client = client.clone();
            Box::pin(async move { Ok(client) })
        });
        let store = PairStore::new(cert_dir, "kubelet-server");
        Self::new(SERVING_SIGNER, store, template, client)
    }

    /// Starts with this certificate, which is renewed at once if `force` is set.
    pub(super) fn begin_with(&mut self, pair: Option<Arc<Pair>>, force: bool) {
        self.current.send_replace(pair);
        self.force = force;
    }

    /// The current certificate; `None` before the first one.
    pub fn subscribe(&self) -> PairReceiver {
        self.current.subscribe()
    }

    /// Manages the certificate until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let keep = self.keep();
        cancel.run_until_cancelled(keep).await;
    }

    async fn keep(&mut self) {
        self.load().await;
        let mut retry = RetryDelay::new(FIRST_RETRY, MAX_RETRY);
        let mut complaint = None;
        loop {
            if !self.wait_until_due().await {
                return;
            }
            let Some(template) = self.template.borrow_and_update().clone() else {
                continue;
            };
            let mut templates = self.template.clone();
            let outcome = tokio::select! {
                biased;
                // A pending request is abandoned when the template changes.
                () = other(&mut templates, &template) => continue,
                outcome = self.rotate(&template) => outcome,
            };
            match outcome {
                Ok(pair) => {
                    retry.reset();
                    complaint = None;
                    self.force = false;
                    self.share = share();
                    info!(
                        signer = self.signer.name, until = %pair.facts.not_after,
                        "received a new certificate"
                    );
                    let before = self.current.send_replace(Some(Arc::new(pair)));
                    if let (Some(renewals), Some(before)) = (&self.renewals, before) {
                        renewals.replaced(before.facts.not_before);
                    }
                    // This avoids a busy loop if the certificate does not satisfy the template.
                    time::sleep(PAUSE).await;
                }
                Err(error) => {
                    if let Some(renewals) = &self.renewals {
                        renewals.failed();
                    }
                    let is_known =
                        matches!(&error, RotationError::Request(error) if error.is_unreachable());
                    let error = error.to_string();
                    if !is_known && complaint.as_ref() != Some(&error) {
                        warn!(
                            signer = self.signer.name,
                            error, "cannot get a new certificate; retrying"
                        );
                        complaint = Some(error);
                    }
                    time::sleep(retry.after_failure()).await;
                }
            }
        }
    }

    /// Loads the stored certificate unless there already is one.
    async fn load(&mut self) {
        if self.current.borrow().is_some() {
            return;
        }
        let store = self.store.clone();
        let stored = repeatable::blocking(move || store.current()).await;
        match stored {
            Ok(Ok(Some(pair))) if !pair.is_expired(clock::now()) => {
                self.current.send_replace(Some(Arc::new(pair)));
            }
            Ok(Err(error)) => warn!(%error, "cannot read the stored certificate"),
            _ => {}
        }
    }

    /// Returns once a certificate must be requested; `false` if none ever will be.
    async fn wait_until_due(&mut self) -> bool {
        loop {
            let template = self.template.borrow_and_update().clone();
            let wait = match &template {
                None => LOOK,
                Some(template) => match self.due_in(template) {
                    Some(wait) => wait.min(LOOK),
                    None => return true,
                },
            };
            tokio::select! {
                biased;
                changed = self.template.changed() => {
                    if changed.is_err() {
                        if template.is_none() {
                            return false;
                        }
                        // The template can no longer change.
                        time::sleep(wait).await;
                    }
                }
                () = time::sleep(wait) => {}
            }
        }
    }

    /// The time until renewal; `None` if a certificate must be requested now.
    fn due_in(&self, template: &Template) -> Option<Duration> {
        let current = self.current.borrow();
        let facts = &current.as_ref()?.facts;
        if self.force || !facts.satisfies(template) {
            return None;
        }
        let renewal = renewal(facts.not_before, facts.not_after, self.share);
        let left = renewal.duration_since(clock::now());
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }

    /// Requests and stores a certificate.
    async fn rotate(&self, template: &Template) -> Result<Pair, RotationError> {
        let now = clock::now();
        let has_valid =
            |pair: &Option<Arc<Pair>>| pair.as_ref().is_some_and(|pair| !pair.is_expired(now));
        let has_valid = has_valid(&self.current.borrow());
        let client = (self.client)(has_valid)
            .await
            .map_err(RotationError::Client)?;
        let key = new_key()?;
        let request = SigningRequest {
            template,
            signer: self.signer,
            key: &key,
            name: None,
        };
        let certificate = request.certificate(client, DECISION).await?;
        store(&self.store, certificate, key.serialized_der().to_vec()).await
    }
}

/// Returns once the template has changed.
async fn other(templates: &mut watch::Receiver<Option<Template>>, template: &Template) {
    let changed = templates.wait_for(|new| new.as_ref() != Some(template));
    if changed.await.is_err() {
        // The template can no longer change.
        std::future::pending().await
    }
}

/// Stores a certificate in PEM with its key in PKCS #8.
pub(super) async fn store(
    store: &PairStore,
    certificate: Vec<u8>,
    key: Vec<u8>,
) -> Result<Pair, RotationError> {
    let store = store.clone();
    let stored = repeatable::blocking(move || {
        let key = super::pem::encode("PRIVATE KEY", &key);
        let pair = Pair::parse(&certificate, key.as_bytes())?;
        store.update(&pair)?;
        Ok(pair)
    });
    stored.await.unwrap_or(Err(RotationError::Stopped))
}

/// A random number from 0 to 1, so that nodes that started together do not renew together.
fn share() -> f64 {
    let random = u32::try_from(repeatable::random() % 1024).unwrap_or_default();
    f64::from(random) / 1024.0
}

/// Whether a certificate has not expired.
pub(super) fn holds(pair: &Pair, now: Timestamp) -> bool {
    !pair.is_expired(now)
}
