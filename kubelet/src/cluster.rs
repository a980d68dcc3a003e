//! A kubelet's part in a cluster, put together: who it is to the API server, its node's
//! object, and its lease.

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

/// The cluster that a kubelet joins.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How this node identifies itself to the API server.
    pub identity: IdentityOptions,
    /// Request and renew the serving certificate (`serverTLSBootstrap`).
    pub server_tls_bootstrap: bool,
    /// How often the API server is asked (`kubeAPIQPS`, `kubeAPIBurst`).
    pub rate_limit: RateLimit,
    /// How often it is told of events (`eventRecordQPS`, `eventBurst`); as often as there
    /// are any when unset.
    pub event_rate_limit: Option<RateLimit>,
    /// How it is found out that a config map or a secret has changed
    /// (`configMapAndSecretChangeDetectionStrategy`).
    pub change_detection: ChangeDetection,
    /// Where pods are kept for a start without the API server; nowhere when unset.
    pub checkpoint: Option<CheckpointOptions>,
    /// What the node's object says.
    pub node: NodeOptions,
}

/// A cluster that is joined, and whose parts do not run yet.
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

/// What of the kubelet its part in a cluster is made from.
pub struct ClusterParts {
    /// The container runtime.
    pub cri: CriClient,
    /// What it says of its own state.
    pub readiness: Arc<RuntimeReadiness>,
    /// What other parts know of the node.
    pub findings: Arc<dyn Findings>,
    /// A directory on the file system that pods fill.
    pub root_dir: PathBuf,
}

impl std::fmt::Debug for ClusterParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterParts").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads what the options name. Nothing is asked of the API server yet.
    ///
    /// # Errors
    /// Which file is of no use, and why.
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

    /// A client that asks the API server about the callers of this node, with a limit of its
    /// own: whoever calls often holds up nothing else that the node asks for.
    ///
    /// # Errors
    /// The user's credentials cannot be had.
    pub fn review_client(&self) -> Result<Client, JoinError> {
        Ok(self.server.client(Some(self.options.rate_limit))?)
    }

    /// Takes the events of this node and its pods.
    pub const fn events(&self) -> &EventRecorder {
        &self.events
    }

    /// What the kubelet's core has of the cluster.
    pub fn membership(&self) -> Membership {
        Membership {
            client: self.client.clone(),
            node: self.watch.subscribe(),
            last_node: None,
            last_statuses: BTreeMap::new(),
        }
    }

    /// Whether the API server cannot be reached, as far as is known.
    pub fn reach(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let server = self.server.clone();
        move || server.is_away()
    }

    /// What has metrics to show: requests to the API server, and the client certificate.
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

    /// Whether the API server has said once whether it has the node's object.
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.watch.listed()
    }

    /// Runs all of it until cancelled: the identity, the node's object and its status, its
    /// lease, and the certificate that serves it, which comes back where the API server is
    /// to sign it.
    ///
    /// # Errors
    /// The user's credentials cannot be had.
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

/// Has the serving certificate ask for the node's addresses.
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

/// What the serving certificate is to say; `None` while the node has no address.
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
