//! The kubelet's membership in a cluster: its identity to the API server, its node object and its
//! lease, its pods and their objects, and the checkpoint for starts without the API server.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::Client;
use kubelet_api_client::{
    certificate::{
        client::{IdentityKeeper, IdentityOptions, JoinError, join},
        manager::CertificateManager,
        metrics::{ClientCertificateMetrics, RenewalMetrics, ServingCertificateMetrics},
        request::Template,
    },
    client::{ApiServer, RateLimit},
    events::{EventQueue, EventRecorder, EventSender},
    objects::{ApiObjects, ApiObjectsParts, ChangeDetection, Objects},
};
use kubelet_checkpoint::{
    Checkpoint, CheckpointError, CheckpointOptions, objects::CheckpointedObjects,
};
use kubelet_metrics::Collector;
use kubelet_node::{
    lease::LeaseKeeper,
    options::NodeOptions,
    reporter::{NodeReporter, OnRepeatedFailure, ReporterParts},
    watch::NodeWatch,
};
use kubelet_server::{
    ClusterDependencies,
    reviews::ApiServerReviews,
    tls::certificate::{ServingCertificate, SignedCertificate},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    kubelet::{Kubelet, Membership},
    sources::apiserver::ApiSource,
};

/// Why a cluster cannot be joined as configured.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The node's identity or a file of it is unusable.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The checkpoint for starts without the API server is unusable.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// How a kubelet joins its cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How this node identifies itself to the API server.
    pub identity: IdentityOptions,
    /// Request and renew the serving certificate (`serverTLSBootstrap`).
    pub server_tls_bootstrap: bool,
    /// Rate limit of requests to the API server (`kubeAPIQPS`, `kubeAPIBurst`).
    pub rate_limit: RateLimit,
    /// Rate limit of events (`eventRecordQPS`, `eventBurst`); unlimited when unset.
    pub event_rate_limit: Option<RateLimit>,
    /// How changes of config maps and secrets are detected
    /// (`configMapAndSecretChangeDetectionStrategy`).
    pub change_detection: ChangeDetection,
    /// The checkpoint for starts without the API server; none when unset.
    pub checkpoint: Option<CheckpointOptions>,
    /// The contents of the node object.
    pub node: NodeOptions,
}

/// A cluster that was joined, and whose parts do not run yet.
pub struct Cluster {
    options: ClusterOptions,
    node_name: String,
    server: ApiServer,
    keeper: IdentityKeeper,
    watch: NodeWatch,
    client: Client,
    events: EventRecorder,
    queue: EventQueue,
    checkpoint: Option<Arc<Checkpoint>>,
    serving_renewals: Arc<RenewalMetrics>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("options", &self.options)
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the files that the options name. Sends no request to the API server yet.
    ///
    /// # Errors
    /// A file or the checkpoint is unusable, and why.
    pub async fn join(options: ClusterOptions, node_name: &str) -> Result<Self, ClusterError> {
        let (server, keeper) = join(&options.identity, node_name).await?;
        let client = server.client(Some(options.rate_limit));
        let (events, queue) = EventRecorder::new(node_name);
        let checkpoint = match &options.checkpoint {
            Some(options) => Some(Arc::new(Checkpoint::open(options, node_name).await?)),
            None => None,
        };
        Ok(Self {
            watch: NodeWatch::new(client.clone(), node_name),
            node_name: node_name.to_owned(),
            options,
            server,
            keeper,
            client,
            events,
            queue,
            checkpoint,
            serving_renewals: Arc::new(RenewalMetrics::serving()),
        })
    }

    /// The recorder of events of this node and its pods.
    pub const fn events(&self) -> &EventRecorder {
        &self.events
    }

    /// The membership for [`Kubelet::new`].
    pub fn membership(&self) -> Membership {
        let checkpoint = self.checkpoint.as_ref();
        Membership {
            client: self.client.clone(),
            node: self.watch.subscribe(),
            was_given_up: self.watch.was_given_up(),
            last_node: checkpoint.and_then(|checkpoint| checkpoint.node()),
            last_statuses: checkpoint
                .map(|checkpoint| checkpoint.last_statuses())
                .unwrap_or_default(),
        }
    }

    /// The source of the pods that are bound to this node.
    pub fn source(&self) -> ApiSource {
        let mut listed = self.watch.listed();
        ApiSource {
            client: self.client.clone(),
            node_name: self.node_name.clone(),
            // Fails only if the sender is gone; this source ends then as well.
            node_known: Box::pin(async move { drop(listed.wait_for(|listed| *listed).await) }),
            checkpoint: self.checkpoint.clone(),
        }
    }

    /// The objects that pods reference; the checkpointed ones while the API server is unreachable.
    pub fn objects(
        &self,
        sync_frequency: Duration,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Arc<dyn Objects> {
        let objects = Arc::new(ApiObjects::new(ApiObjectsParts {
            client: self.client.clone(),
            node: self.watch.subscribe(),
            change_detection: self.options.change_detection,
            sync_frequency,
            tasks: tasks.clone(),
            cancel: cancel.clone(),
        }));
        let Some(checkpoint) = &self.checkpoint else {
            return objects;
        };
        let server = self.server.clone();
        let is_away = move || server.is_away();
        Arc::new(CheckpointedObjects::new(
            objects,
            Arc::clone(checkpoint),
            is_away,
        ))
    }

    /// The metrics of requests to the API server and of certificates.
    fn metrics(&self) -> Vec<Arc<dyn Collector>> {
        let identity = Arc::clone(self.server.identity());
        let mut collectors: Vec<Arc<dyn Collector>> = vec![
            self.server.metrics().clone(),
            Arc::new(ClientCertificateMetrics::new(identity)),
        ];
        if self.options.identity.rotate_certificates {
            collectors.push(self.keeper.renewals().clone());
        }
        if self.options.server_tls_bootstrap {
            collectors.push(self.serving_renewals.clone());
        }
        collectors
    }

    /// Runs the cluster's parts until cancelled: the identity, the node object and its status, the
    /// lease, the events, the checkpoint, and the serving certificate if the API server signs it
    /// (`serverTLSBootstrap`). Returns what the servers of `kubelet` take from the cluster.
    pub fn spawn(
        self,
        kubelet: &Kubelet,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> ClusterDependencies {
        // Frequent callers of the node's API must not delay its own requests, nor events the others,
        // and nothing delays heartbeats: each has a client with a rate limit of its own, or none.
        let reviews = ApiServerReviews::new(self.server.client(Some(self.options.rate_limit)));
        let heartbeat = self.server.client(None);
        let event_client = self.server.client(self.options.event_rate_limit);
        let mut metrics = self.metrics();
        if let Some(checkpoint) = self.checkpoint {
            let node = self.watch.subscribe();
            tasks.spawn(keep(checkpoint, kubelet.clone(), node, cancel.clone()).boxed());
        }
        let on_repeated_failure: OnRepeatedFailure = {
            let identity = Arc::clone(self.server.identity());
            Arc::new(move || identity.cut_connections())
        };
        let reporter = NodeReporter::new(ReporterParts {
            client: heartbeat.clone(),
            node_name: self.node_name.clone(),
            options: self.options.node.clone(),
            root_dir: kubelet.local_node().root_dir.clone(),
            cri: kubelet.cri().clone(),
            readiness: Arc::clone(kubelet.readiness()),
            status_source: Arc::new(kubelet.clone()),
            node: self.watch.subscribe(),
            on_repeated_failure: Arc::clone(&on_repeated_failure),
            events: self.events,
        });
        metrics.push(reporter.startup());
        let events = EventSender::new(event_client, self.queue);
        tasks.spawn(events.run(cancel.clone()).boxed());
        let lease = LeaseKeeper::new(
            heartbeat,
            &self.node_name,
            self.options.node.lease_duration,
            self.watch.subscribe(),
            on_repeated_failure,
        );
        let certificate = self.options.server_tls_bootstrap.then(|| {
            let (sender, template) = watch::channel(None);
            let name = self.node_name.clone();
            let follow = follow_addresses(reporter.addresses(), sender, name);
            let cancelled = cancel.clone();
            tasks.spawn(async move { cancelled.run_until_cancelled(follow).await });
            let dir = &self.options.identity.cert_dir;
            let manager = CertificateManager::serving(dir, template, self.client.clone())
                .counted(self.serving_renewals);
            let pairs = manager.subscribe();
            tasks.spawn(manager.run(cancel.clone()).boxed());
            metrics.push(Arc::new(ServingCertificateMetrics::new(pairs.clone())));
            let signed: Arc<dyn ServingCertificate> = Arc::new(SignedCertificate::new(pairs));
            signed
        });
        tasks.spawn(self.keeper.run(cancel.clone()).boxed());
        tasks.spawn(self.watch.run(cancel.clone()).boxed());
        tasks.spawn(reporter.run(cancel.clone()).boxed());
        tasks.spawn(lease.run(cancel.clone()).boxed());
        ClusterDependencies {
            reviews: Some(Arc::new(reviews)),
            metrics,
            certificate,
        }
    }
}

/// Writes the checkpoint until cancelled.
async fn keep(
    checkpoint: Arc<Checkpoint>,
    kubelet: Kubelet,
    node: watch::Receiver<Option<Arc<Node>>>,
    cancel: CancellationToken,
) {
    let statuses = checkpoint.follow_statuses(
        kubelet.status_changes(),
        |uid| kubelet.status(uid),
        cancel.clone(),
    );
    tokio::join!(
        statuses,
        checkpoint.follow_node(node, cancel.clone()),
        checkpoint.run(cancel)
    );
}

/// Requests a serving certificate for the node's current addresses.
async fn follow_addresses(
    mut addresses: watch::Receiver<Vec<NodeAddress>>,
    template: watch::Sender<Option<Template>>,
    node_name: String,
) {
    loop {
        let wanted = serving_template(&node_name, &addresses.borrow_and_update());
        template.send_if_modified(|known| {
            let is_new = *known != wanted;
            *known = wanted;
            is_new
        });
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

/// The serving certificate to request; `None` while the node has no IP address.
fn serving_template(node_name: &str, addresses: &[NodeAddress]) -> Option<Template> {
    let mut template = Template::of_node(node_name);
    for address in addresses {
        match (address.type_.as_str(), address.address.parse::<IpAddr>()) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => template.addresses.push(ip),
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) => {
                template.dns_names.push(address.address.clone());
            }
            _ => {}
        }
    }
    template.dns_names.sort_unstable();
    template.dns_names.dedup();
    template.addresses.sort_unstable();
    template.addresses.dedup();
    (!template.addresses.is_empty()).then_some(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serving_certificate_says_every_address_and_name() {
        let address = |kind: &str, address: &str| NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        };
        let hostname = address("Hostname", "node-1");
        assert_eq!(
            serving_template("node-1", std::slice::from_ref(&hostname)),
            None
        );
        let all = [
            hostname,
            address("InternalIP", "10.0.0.2"),
            address("ExternalIP", "10.0.0.1"),
            address("InternalDNS", "a.example"),
            address("InternalIP", "10.0.0.2"),
        ];
        let template = serving_template("node-1", &all).unwrap();
        assert_eq!(template.common_name, "system:node:node-1");
        assert_eq!(template.dns_names, ["a.example", "node-1"]);
        let ips: Vec<String> = template.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.2"]);
    }
}
