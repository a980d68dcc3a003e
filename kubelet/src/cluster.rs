//! The kubelet's membership in a cluster: its identity to the API server, its node object and its
//! lease.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::NodeAddress;
use kube::Client;
use kubelet_api_client::{
    certificate::{
        client::{IdentityKeeper, IdentityOptions, JoinError, join},
        manager::CertificateManager,
        metrics::{ClientCertificateMetrics, RenewalMetrics},
        pair::PairReceiver,
        request::Template,
    },
    client::{ApiServer, RateLimit},
    events::{EventQueue, EventRecorder, EventSender},
    objects::ChangeDetection,
};
use kubelet_checkpoint::CheckpointOptions;
use kubelet_cri_client::{CriClient, readiness::RuntimeReadiness};
use kubelet_metrics::Collector;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    kubelet::Membership,
    node::{
        findings::Findings,
        lease::LeaseKeeper,
        options::NodeOptions,
        reporter::{NodeReporter, OnRepeatedFailure, ReporterParts},
        watch::NodeWatch,
    },
};

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

/// The parts of the kubelet that [`Cluster::spawn`] needs.
pub struct ClusterParts {
    /// The container runtime.
    pub cri: CriClient,
    /// The runtime's own conditions.
    pub readiness: Arc<RuntimeReadiness>,
    /// The state of the node as other parts of the kubelet report it.
    pub findings: Arc<dyn Findings>,
    /// A directory on the file system that pods use.
    pub root_dir: PathBuf,
}

impl std::fmt::Debug for ClusterParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterParts").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the files that the options name. Sends no request to the API server yet.
    ///
    /// # Errors
    /// A file is unusable, and why.
    pub async fn join(options: ClusterOptions, node_name: &str) -> Result<Self, JoinError> {
        let (server, keeper) = join(&options.identity, node_name).await?;
        let client = server.client(Some(options.rate_limit))?;
        let (events, queue) = EventRecorder::new(node_name);
        Ok(Self {
            watch: NodeWatch::new(client.clone(), node_name),
            node_name: node_name.to_owned(),
            options,
            server,
            keeper,
            client,
            events,
            queue,
            serving_renewals: Arc::new(RenewalMetrics::serving()),
        })
    }

    /// A client that authenticates and authorizes callers of this node's API, with a rate limit of
    /// its own: frequent callers do not delay the node's other requests.
    ///
    /// # Errors
    /// The user's credentials cannot be obtained.
    pub fn review_client(&self) -> Result<Client, JoinError> {
        Ok(self.server.client(Some(self.options.rate_limit))?)
    }

    /// The recorder of events of this node and its pods.
    pub const fn events(&self) -> &EventRecorder {
        &self.events
    }

    /// The membership for [`Kubelet::new`](crate::kubelet::Kubelet::new), without state of an
    /// earlier kubelet.
    pub fn membership(&self) -> Membership {
        Membership {
            client: self.client.clone(),
            node: self.watch.subscribe(),
            last_node: None,
            last_statuses: BTreeMap::new(),
        }
    }

    /// Whether the API server is unreachable, as far as is known.
    pub fn reach(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let server = self.server.clone();
        move || server.is_away()
    }

    /// The metrics of requests to the API server and of certificates.
    pub fn metrics(&self) -> Vec<Arc<dyn Collector>> {
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

    /// True once the API server has answered whether the node object exists.
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.watch.listed()
    }

    /// Runs the cluster's parts until cancelled: the identity, the node object and its status, the
    /// lease, the events, and the serving certificate, which is returned if the API server signs it
    /// (`serverTLSBootstrap`).
    ///
    /// # Errors
    /// The user's credentials cannot be obtained.
    pub fn spawn(
        self,
        parts: ClusterParts,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Result<Option<PairReceiver>, JoinError> {
        let heartbeat = self.server.client(None)?;
        let on_repeated_failure: OnRepeatedFailure = {
            let identity = Arc::clone(self.server.identity());
            Arc::new(move || identity.cut_connections())
        };
        let reporter = NodeReporter::new(ReporterParts {
            client: heartbeat.clone(),
            node_name: self.node_name.clone(),
            options: self.options.node.clone(),
            root_dir: parts.root_dir,
            cri: parts.cri,
            readiness: parts.readiness,
            findings: parts.findings,
            node: self.watch.subscribe(),
            on_repeated_failure: Arc::clone(&on_repeated_failure),
            events: self.events,
        });
        let event_client = self.server.client(self.options.event_rate_limit)?;
        let events = EventSender::new(event_client, self.queue);
        tasks.spawn(events.run(cancel.clone()));
        let lease = LeaseKeeper::new(
            heartbeat,
            &self.node_name,
            self.options.node.lease_duration,
            self.watch.subscribe(),
            on_repeated_failure,
        );
        let serving = self.options.server_tls_bootstrap.then(|| {
            let (sender, template) = watch::channel(None);
            let name = self.node_name.clone();
            let follow = follow_addresses(reporter.addresses(), sender, name);
            let cancelled = cancel.clone();
            tasks.spawn(async move { cancelled.run_until_cancelled(follow).await });
            let dir = &self.options.identity.cert_dir;
            let manager = CertificateManager::serving(dir, template, self.client.clone())
                .counted(self.serving_renewals);
            let pairs = manager.subscribe();
            tasks.spawn(manager.run(cancel.clone()));
            pairs
        });
        tasks.spawn(self.keeper.run(cancel.clone()));
        tasks.spawn(self.watch.run(cancel.clone()));
        tasks.spawn(reporter.run(cancel.clone()));
        tasks.spawn(lease.run(cancel.clone()));
        Ok(serving)
    }
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
    template.dns_names.sort();
    template.dns_names.dedup();
    template.addresses.sort();
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
