//! The node's lease in `kube-node-lease`, renewed as a heartbeat.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::PostParams};
use kubelet_api_client::request::{ApiError, ask_within};
use kubelet_host::{clock, repeatable};
use retry_delay::RetryDelay;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::reporter::OnRepeatedFailure;

const NAMESPACE: &str = "kube-node-lease";
/// Update attempts per renewal, as upstream.
const TRIES: u32 = 5;
/// Delay before the second attempt to create or read the lease; doubled for each further one.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(7);

/// Renews a node's lease four times per lease duration.
pub struct LeaseKeeper {
    leases: Api<Lease>,
    name: String,
    duration: Duration,
    node: watch::Receiver<Option<Arc<Node>>>,
    on_repeated_failure: OnRepeatedFailure,
    /// The lease as last written.
    latest: Option<Lease>,
    /// Whether renewals are failing; only the first failure is logged.
    is_failing: bool,
}

impl std::fmt::Debug for LeaseKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseKeeper")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl LeaseKeeper {
    /// A keeper of the lease of the node `name`, with the given `duration`; the object in `node`
    /// owns the lease.
    pub fn new(
        client: Client,
        name: &str,
        duration: Duration,
        node: watch::Receiver<Option<Arc<Node>>>,
        on_repeated_failure: OnRepeatedFailure,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, NAMESPACE),
            name: name.to_owned(),
            duration,
            node,
            on_repeated_failure,
            latest: None,
            is_failing: false,
        }
    }

    /// Renews the lease until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&mut self) {
        // The owner reference needs the node object.
        if self.node.wait_for(Option::is_some).await.is_err() {
            return;
        }
        loop {
            self.sync().await;
            let interval = self.duration / 4;
            // Up to 4 % longer, as upstream.
            let share = u32::try_from(repeatable::random() % 1024).unwrap_or_default();
            time::sleep(interval + interval * share / 1024 / 25).await;
        }
    }

    async fn sync(&mut self) {
        if let Some(latest) = self.latest.take()
            && self.renew(latest).await
        {
            return;
        }
        let Some((lease, is_new)) = self.ensure().await else {
            return;
        };
        if is_new {
            self.latest = Some(lease);
            self.succeeded();
        } else if !self.renew(lease).await {
            debug!(lease = self.name, "node lease not renewed; retrying later");
        }
    }

    /// Renews the lease based on a known version; returns whether it succeeded.
    async fn renew(&mut self, mut base: Lease) -> bool {
        for attempt in 0..TRIES {
            let update = self.renewed(Some(&base));
            let params = PostParams::default();
            let replace = self.leases.replace(&self.name, &params, &update);
            match self.in_time(replace).await {
                Ok(lease) => {
                    self.latest = Some(lease);
                    self.succeeded();
                    return true;
                }
                Err(error) if error.is_conflict() => {
                    let Some((lease, _)) = self.ensure().await else {
                        return false;
                    };
                    base = lease;
                    continue;
                }
                Err(error) if error.is_not_found() => return false,
                Err(error) => {
                    self.failed(&error);
                    if attempt > 0 && error.is_silence() {
                        (self.on_repeated_failure)();
                    }
                }
            }
        }
        false
    }

    /// Gets the lease, or creates it and returns `true` as well; retries on errors. `None` when the
    /// lease is missing and there is no node object to own a new one.
    async fn ensure(&mut self) -> Option<(Lease, bool)> {
        let mut delay = RetryDelay::new(FIRST_RETRY, MAX_RETRY);
        loop {
            let error = match self.in_time(self.leases.get_opt(&self.name)).await {
                Ok(Some(lease)) => return Some((lease, false)),
                Ok(None) if self.node.borrow().is_none() => return None,
                Ok(None) => {
                    let new = self.renewed(None);
                    let params = PostParams::default();
                    let create = self.leases.create(&params, &new);
                    match self.in_time(create).await {
                        Ok(lease) => return Some((lease, true)),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            self.failed(&error);
            time::sleep(delay.after_failure()).await;
        }
    }

    /// The lease with the current renew time.
    fn renewed(&self, base: Option<&Lease>) -> Lease {
        let mut lease = base.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                ..LeaseSpec::default()
            }),
        });
        let spec = lease.spec.get_or_insert_default();
        spec.lease_duration_seconds = i32::try_from(self.duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(clock::now()));
        let owners = lease.metadata.owner_references.get_or_insert_default();
        let node = self.node.borrow();
        if owners.is_empty()
            && let Some(uid) = node.as_ref().and_then(|node| node.metadata.uid.clone())
        {
            owners.push(OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.name.clone(),
                uid,
                ..OwnerReference::default()
            });
        }
        lease
    }

    async fn in_time<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        ask_within(self.duration / 4, request).await
    }

    fn failed(&mut self, error: &ApiError) {
        let is_first = !std::mem::replace(&mut self.is_failing, true);
        if is_first && !error.is_unreachable() {
            warn!(lease = self.name, %error, "cannot renew the node lease; retrying");
        }
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            info!(lease = self.name, "the node lease is renewed again");
        }
    }
}
