//! Registers the node and reports its status: when it changes, and at intervals otherwise.

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSystemInfo};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kubelet_api_client::{
    events::{EventRecorder, Subject, reason},
    request::{ApiError, ask_within},
};
use kubelet_cri_client::{CriClient, readiness::RuntimeReadiness};
use kubelet_host::{
    clock,
    machine::Machine,
    repeatable::{blocking, random},
};
use retry_delay::RetryDelay;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    addresses,
    capacity::{self, Quantities},
    options::NodeOptions,
    patch,
    registration::{self, Registered},
    runtime_state::RuntimeState,
    startup::NodeStartup,
    status::{Snapshot, has_changed},
    status_source::NodeStatusSource,
    system_info,
};

/// Attempts per status report, as upstream.
const TRIES: u32 = 5;
/// Delay before the second registration attempt; doubled for each further one.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(7);
/// Interval of the status updates during [`START`] while the node is not ready.
const START_PERIOD: Duration = Duration::from_millis(500);
/// How long [`START_PERIOD`] applies.
const START: Duration = Duration::from_secs(30);
/// How long the first update waits for what the kubelet must do at each start: the node of a
/// restarted kubelet would be unready until then.
const START_GRACE: Duration = Duration::from_secs(2);
/// Interval of the checks whether it is done.
const START_CHECK: Duration = Duration::from_millis(50);

/// Called when requests to the API server fail repeatedly: its connections may be dead.
pub type OnRepeatedFailure = Arc<dyn Fn() + Send + Sync>;

/// The parts of a [`NodeReporter`].
#[derive(Clone)]
pub struct ReporterParts {
    /// API client without a rate limit, for heartbeats.
    pub client: Client,
    /// Name of the node.
    pub node_name: String,
    /// The node's configuration.
    pub options: NodeOptions,
    /// A directory on the file system that pods write to.
    pub root_dir: PathBuf,
    /// The container runtime.
    pub cri: CriClient,
    /// The runtime's readiness.
    pub readiness: Arc<RuntimeReadiness>,
    /// What other parts of the kubelet know about the node.
    pub status_source: Arc<dyn NodeStatusSource>,
    /// The node object, from [`super::watch`].
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Called when requests to the API server fail repeatedly.
    pub on_repeated_failure: OnRepeatedFailure,
    /// Recorder for events about the node.
    pub events: EventRecorder,
}

impl std::fmt::Debug for ReporterParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReporterParts")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Registers a node and reports its status.
#[derive(Debug)]
pub struct NodeReporter {
    parts: ReporterParts,
    nodes: Api<Node>,
    runtime: RuntimeState,
    system: NodeSystemInfo,
    capacity: Quantities,
    addresses: watch::Sender<Vec<NodeAddress>>,
    /// Time of the last report, and the interval until the next one if nothing changes.
    reported: Option<(Instant, Duration)>,
    /// The pod CIDRs that the runtime was last told.
    pod_cidr: String,
    /// Whether reports are failing; only the first failure is logged.
    is_failing: bool,
    /// The last error from computing the status, already logged.
    trouble: Option<String>,
    is_unschedulable: bool,
    /// Whether the reboot event was recorded.
    is_reboot_told: bool,
    startup: Arc<NodeStartup>,
}

impl NodeReporter {
    /// A reporter that has not read the machine yet.
    pub fn new(parts: ReporterParts) -> Self {
        Self {
            nodes: Api::all(parts.client.clone()),
            runtime: RuntimeState::new(parts.cri.clone(), Arc::clone(&parts.readiness)),
            system: NodeSystemInfo::default(),
            capacity: Quantities::new(),
            addresses: watch::Sender::default(),
            reported: None,
            pod_cidr: String::new(),
            is_failing: false,
            trouble: None,
            is_unschedulable: false,
            is_reboot_told: false,
            startup: Arc::new(NodeStartup::new(rustix::system::sysinfo().uptime)),
            parts,
        }
    }

    /// The node's addresses as last computed; empty before the first status.
    pub fn addresses(&self) -> watch::Receiver<Vec<NodeAddress>> {
        self.addresses.subscribe()
    }

    /// How long the start of the node takes.
    pub fn startup(&self) -> Arc<NodeStartup> {
        Arc::clone(&self.startup)
    }

    /// Registers the node, and reports its status until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.report()).await;
    }

    async fn report(&mut self) {
        self.read_machine().await;
        self.runtime.refresh().await;
        if self.parts.options.register {
            self.register().await;
        }
        self.parts.status_source.registered();
        let begun = Instant::now();
        let mut shutting_down = self.parts.status_source.shutting_down();
        if self.wait_for_start(&shutting_down).await {
            self.runtime.refresh().await;
        }
        loop {
            let is_ready = self.sync().await;
            let period = self.parts.options.status_update_frequency;
            let wait = if is_ready || begun.elapsed() >= START {
                // Up to 4 % longer, as upstream.
                let share = u32::try_from(random() % 1024).unwrap_or_default();
                period + period * share / 1024 / 25
            } else {
                START_PERIOD.min(period)
            };
            tokio::select! {
                biased;
                // Controllers must know before the node is down.
                Ok(()) = shutting_down.changed() => {}
                () = time::sleep(wait) => self.runtime.refresh().await,
            }
        }
    }

    /// Waits for what the kubelet must do at each start; returns whether that took time.
    async fn wait_for_start(&self, shutting_down: &watch::Receiver<bool>) -> bool {
        let begun = Instant::now();
        let mut has_waited = false;
        while !self.parts.status_source.problems().is_empty()
            && !*shutting_down.borrow()
            && begun.elapsed() < START_GRACE
        {
            time::sleep(START_CHECK).await;
            has_waited = true;
        }
        has_waited
    }

    async fn read_machine(&mut self) {
        let (root_dir, options) = (
            self.parts.root_dir.clone(),
            self.parts.options.capacity.clone(),
        );
        let read = blocking(move || {
            let machine = Machine::read();
            let capacity = capacity::read(&machine, &root_dir, &options);
            (system_info::read(machine.swap), capacity)
        });
        if let Ok((system, capacity)) = read.await {
            self.system = system;
            self.capacity = capacity;
        }
    }

    /// Retries registration until it succeeds.
    async fn register(&mut self) {
        let mut delay = RetryDelay::new(FIRST_RETRY, MAX_RETRY);
        let mut complaint = None;
        self.startup.attempts();
        loop {
            let name = self.parts.node_name.clone();
            let mut node = registration::new_node(&name, &self.parts.options);
            self.apply(&mut node).await;
            let is_new = self.parts.status_source.is_new_machine();
            let nodes = &self.nodes;
            let registering = registration::register(nodes, &name, &node, is_new, &mut complaint);
            match time::timeout(self.deadline(), registering).await {
                Ok(Registered::New) => return self.startup.registered(),
                Ok(Registered::Before) => return,
                Ok(Registered::No) | Err(_) => {}
            }
            time::sleep(delay.after_failure()).await;
            self.runtime.refresh().await;
        }
    }

    /// Deadline of a request: no longer than the interval to the next one.
    fn deadline(&self) -> Duration {
        let options = &self.parts.options;
        options.status_update_frequency.min(options.lease_duration)
    }

    /// Computes the status and writes it to `node`.
    async fn apply(&mut self, node: &mut Node) {
        let parts = &self.parts;
        let address = addresses::find(&parts.options, &parts.node_name).await;
        let snapshot = Snapshot {
            options: &parts.options,
            hostname: &parts.node_name,
            address,
            system: &self.system,
            capacity: &self.capacity,
            runtime: &self.runtime,
            status_source: &*parts.status_source,
            now: clock::now_time(),
            events: &parts.events,
        };
        let status = node.status.as_ref();
        let booted = status.and_then(|status| Some(status.node_info.as_ref()?.boot_id.as_str()));
        if booted.is_some_and(|boot| !boot.is_empty() && boot != self.system.boot_id)
            && !std::mem::replace(&mut self.is_reboot_told, true)
        {
            let (name, boot_id) = (&parts.node_name, &self.system.boot_id);
            parts.events.warning(
                Subject::Node,
                reason::REBOOTED,
                format_args!("Node {name} has been rebooted, boot id: {boot_id}"),
            );
        }
        let trouble = snapshot.apply(node).err();
        let spec = node.spec.as_ref();
        let is_unschedulable = spec.and_then(|spec| spec.unschedulable) == Some(true);
        if std::mem::replace(&mut self.is_unschedulable, is_unschedulable) != is_unschedulable {
            snapshot.tell(match is_unschedulable {
                true => reason::NODE_NOT_SCHEDULABLE,
                false => reason::NODE_SCHEDULABLE,
            });
        }
        if let Some(text) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            warn!(
                node = parts.node_name,
                error = text,
                "part of the node status is unknown"
            );
        }
        self.trouble = trouble;
        let addresses = node
            .status
            .as_ref()
            .and_then(|status| status.addresses.clone());
        let addresses = addresses.unwrap_or_default();
        self.addresses.send_if_modified(|known| {
            let is_new = *known != addresses;
            *known = addresses;
            is_new
        });
    }

    /// Reports the status if it changed or is due; returns whether the node is ready.
    async fn sync(&mut self) -> bool {
        for attempt in 0..TRIES {
            match self.try_sync(attempt > 0).await {
                Ok(is_ready) => {
                    if std::mem::take(&mut self.is_failing) {
                        info!(
                            node = self.parts.node_name,
                            "the node status is reported again"
                        );
                    }
                    return is_ready;
                }
                Err(error) => {
                    self.failed(&error);
                    if attempt > 0 && error.is_silence() {
                        (self.parts.on_repeated_failure)();
                    }
                }
            }
        }
        debug!(
            node = self.parts.node_name,
            "node status not reported; retrying later"
        );
        true
    }

    fn failed(&mut self, error: &ApiError) {
        let is_first = !std::mem::replace(&mut self.is_failing, true);
        if is_first && !error.is_unreachable() {
            let node = &self.parts.node_name;
            warn!(node, %error, "cannot report the node status; retrying");
        }
    }

    /// One attempt, from a fresh GET if `fresh`, else from the watched object.
    async fn try_sync(&mut self, fresh: bool) -> Result<bool, ApiError> {
        let known = self.parts.node.borrow().clone();
        let original = match known {
            Some(node) if !fresh => node,
            _ => {
                let get = self.nodes.get(&self.parts.node_name);
                Arc::new(ask_within(self.deadline(), get).await?)
            }
        };
        self.tell_pod_cidr(&original).await;
        let mut node = Node::clone(&original);
        self.apply(&mut node).await;
        let is_relabelled = put_labels_right(&mut node);
        let status = |node: &Node| node.status.clone().unwrap_or_default();
        let changed = is_relabelled || has_changed(&status(&original), &status(&node));
        let is_due = self
            .reported
            .is_none_or(|(at, period)| at.elapsed() >= period);
        if changed || is_due {
            let patch = Patch::Strategic(patch::between(&original, &node));
            let params = PatchParams::default();
            let patching = self
                .nodes
                .patch_status(&self.parts.node_name, &params, &patch);
            ask_within(self.deadline(), patching).await?;
            if is_ready(&node) {
                self.startup.ready();
            }
            let period = self.period(changed || self.reported.is_none());
            self.reported = Some((Instant::now(), period));
        }
        Ok(is_ready(&node))
    }

    /// Passes the pod CIDRs to the runtime.
    async fn tell_pod_cidr(&mut self, node: &Node) {
        let cidrs = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
        let cidrs = cidrs.map(|cidrs| cidrs.join(",")).unwrap_or_default();
        if cidrs.is_empty() || cidrs == self.pod_cidr {
            return;
        }
        match self.parts.cri.update_runtime_config(&cidrs).await {
            Ok(()) => {
                info!(
                    node = self.parts.node_name,
                    pod_cidr = cidrs,
                    "sent the pod CIDR to the runtime"
                );
                self.pod_cidr = cidrs;
            }
            Err(error) => {
                warn!(%error, pod_cidr = cidrs, "cannot send the pod CIDR to the runtime; retrying")
            }
        }
    }

    /// The interval until the next report without a change. After a change it is randomised, so
    /// that the nodes of a cluster do not report in step.
    fn period(&self, is_off_beat: bool) -> Duration {
        let period = self.parts.options.status_report_frequency;
        if !is_off_beat {
            return period;
        }
        let share = u32::try_from(random() % 1024).unwrap_or_default();
        period / 2 + period * share / 1024
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Restores the OS and architecture labels, which scheduling needs; returns whether they changed.
fn put_labels_right(node: &mut Node) -> bool {
    let labels = node.metadata.labels.get_or_insert_default();
    let mut is_changed = false;
    for (key, value) in [
        ("kubernetes.io/os", std::env::consts::OS),
        ("kubernetes.io/arch", kubelet_host::version::go_arch()),
    ] {
        if labels.get(key).map(String::as_str) != Some(value) {
            labels.insert(key.to_owned(), value.to_owned());
            is_changed = true;
        }
    }
    is_changed
}
