//! Publication of this node's CSI drivers: in its `CSINode` object, in a node annotation with the
//! drivers' ids for the node, and in node labels with its topology segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cri_proto::csi::v1::NodeGetInfoResponse;
use k8s_openapi::{
    api::{
        core::v1::Node,
        storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use kubelet_api_client::request::{ApiError, ask};
use kubelet_pacing::backoff::jittered;
use parking_lot::Mutex;
use retry_delay::RetryDelay;
use serde_json::{Map, Value, json};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::in_tree;

/// Annotation with the node's ids by driver, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Annotation with the in-tree plugins whose volumes the kubelet translates to CSI, separated by
/// commas. Only then do the cluster's controllers and the scheduler translate them too.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Attempts per change, and the delay after the first one, which grows fivefold with each further
/// attempt; as upstream.
const TRIES: u32 = 4;
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// Back-off between changes whose attempts all failed.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A driver's description of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// Name of the driver.
    pub name: String,
    /// The driver's id for the node.
    pub node_id: String,
    /// Maximum number of volumes on the node; 0 means unlimited.
    pub max_volumes: i64,
    /// Topology segments of the node, by label.
    pub topology: BTreeMap<String, String>,
}

impl DriverInfo {
    /// What the driver answers to `NodeGetInfo`.
    pub(super) fn new(name: &str, info: NodeGetInfoResponse) -> Self {
        let topology = info.accessible_topology.into_iter();
        Self {
            name: name.to_owned(),
            node_id: info.node_id,
            max_volumes: info.max_volumes_per_node,
            topology: topology.flat_map(|topology| topology.segments).collect(),
        }
    }
}

/// Why a change could not be published.
#[derive(Debug, thiserror::Error)]
pub enum CsiNodeError {
    /// The driver reported no node id.
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    /// The node is not registered yet.
    #[error("this node's Node object is not known yet")]
    NodeUnknown,
    /// The annotation with the node's ids is malformed.
    #[error("failed to parse node's \"{NODE_IDS}\" annotation value ({value:?}): {source}")]
    Annotation {
        /// Its value.
        value: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// The node already has another value for a topology label.
    #[error(
        "detected topology value collision: driver reported {label:?}:{reported:?} but existing label is {label:?}:{existing:?}"
    )]
    Collision {
        /// The label.
        label: String,
        /// The driver's value.
        reported: String,
        /// The node's value.
        existing: String,
    },
    /// The `CSINode` belonged to another node of this name. It has been deleted.
    #[error("CSINode {0:?} was owned by different node, deleted it")]
    OtherOwner(String),
    /// The node object cannot be read or written.
    #[error("error updating Node object with CSI driver node info: {0}")]
    Node(#[source] ApiError),
    /// The `CSINode` object cannot be read or written.
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    CsiNode(#[source] ApiError),
}

/// A change to publish.
#[derive(Clone, Copy, Debug)]
enum CsiNodeChange<'a> {
    /// Ensure that the `CSINode` exists.
    Begin,
    Install(&'a DriverInfo),
    /// Changes the `CSINode` alone.
    Update(&'a DriverInfo),
    Uninstall(&'a str),
}

/// Publishes the drivers on this node. [`run`](Self::run) creates the `CSINode` object, and
/// withdraws drivers that are gone.
#[derive(Debug)]
pub struct CsiNodeKeeper {
    node_name: String,
    nodes: Api<Node>,
    csi_nodes: Api<CSINode>,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// Serialises changes.
    turn: tokio::sync::Mutex<()>,
    /// Drivers that are gone, but are still published.
    gone: Mutex<BTreeSet<String>>,
    changed: Notify,
    problem: Mutex<Option<String>>,
}

impl CsiNodeKeeper {
    /// A keeper that has published nothing yet. `node` is `None` until the node is known.
    pub fn new(client: Client, node_name: &str, node: watch::Receiver<Option<Arc<Node>>>) -> Self {
        Self {
            node_name: node_name.to_owned(),
            nodes: Api::all(client.clone()),
            csi_nodes: Api::all(client),
            node,
            turn: tokio::sync::Mutex::default(),
            gone: Mutex::default(),
            changed: Notify::new(),
            problem: Mutex::new(Some("CSINode is not yet initialized".to_owned())),
        }
    }

    /// Why the node is not ready: without a `CSINode` the scheduler does not know which volumes the
    /// node can have.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Publishes a driver.
    ///
    /// # Errors
    /// The driver was not published, or only in part.
    pub async fn install(&self, driver: &DriverInfo) -> Result<(), CsiNodeError> {
        if driver.node_id.is_empty() {
            return Err(CsiNodeError::NoNodeId);
        }
        self.make(CsiNodeChange::Install(driver)).await
    }

    /// Publishes how many volumes of a driver the node can have now.
    ///
    /// # Errors
    /// It was not published.
    pub(super) async fn update(&self, driver: &DriverInfo) -> Result<(), CsiNodeError> {
        if driver.node_id.is_empty() {
            return Err(CsiNodeError::NoNodeId);
        }
        self.make(CsiNodeChange::Update(driver)).await
    }

    /// Starts to withdraw a driver that is gone, unless it comes back first.
    pub fn uninstall(&self, driver: &str) {
        self.gone.lock().insert(driver.to_owned());
        self.changed.notify_one();
    }

    /// Creates the `CSINode` and withdraws drivers that are gone, until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let mut delay = RetryDelay::new(RETRY_BASE, RETRY_MAX);
        // Fails when the node is not watched any more.
        if self.node.clone().wait_for(Option::is_some).await.is_err() {
            return;
        }
        while let Err(error) = self.make(CsiNodeChange::Begin).await {
            self.report("failed to initialize CSINode", &error);
            *self.problem.lock() = Some(format!("failed to initialize CSINode: {error}"));
            sleep(jittered(delay.after_failure())).await;
        }
        *self.problem.lock() = None;
        delay.reset();
        loop {
            let gone = self.gone.lock().first().cloned();
            let Some(driver) = gone else {
                self.changed.notified().await;
                continue;
            };
            match self.make(CsiNodeChange::Uninstall(&driver)).await {
                Ok(()) => delay.reset(),
                Err(error) => {
                    self.report("cannot deregister a CSI driver from the cluster", &error);
                    sleep(jittered(delay.after_failure())).await;
                }
            }
        }
    }

    /// Logs an error; at debug level if the server is unreachable, as the transport has logged
    /// that.
    fn report(&self, what: &str, error: &CsiNodeError) {
        match error {
            CsiNodeError::Node(cause) | CsiNodeError::CsiNode(cause) if cause.is_unreachable() => {
                debug!(%error, "{what}");
            }
            _ => warn!(%error, "{what}"),
        }
    }

    /// Makes a change, with a few attempts.
    async fn make(&self, change: CsiNodeChange<'_>) -> Result<(), CsiNodeError> {
        let _turn = self.turn.lock().await;
        let was_gone = match change {
            CsiNodeChange::Begin => false,
            CsiNodeChange::Update(driver) if self.gone.lock().contains(&driver.name) => {
                return Ok(());
            }
            CsiNodeChange::Update(_) => false,
            CsiNodeChange::Install(driver) => self.gone.lock().remove(&driver.name),
            // It may have come back in the meantime.
            CsiNodeChange::Uninstall(driver) if !self.gone.lock().contains(driver) => return Ok(()),
            CsiNodeChange::Uninstall(_) => true,
        };
        let mut delay = FIRST_RETRY;
        let mut tries = 1;
        loop {
            let error = match (self.attempt(change).await, change) {
                (Ok(()), CsiNodeChange::Uninstall(driver)) => {
                    self.gone.lock().remove(driver);
                    info!(driver, "deregistered the CSI driver from the cluster");
                    return Ok(());
                }
                (Ok(()), _) => return Ok(()),
                (Err(error), _) => error,
            };
            if tries == TRIES {
                if let (CsiNodeChange::Install(driver), true) = (change, was_gone) {
                    self.uninstall(&driver.name);
                }
                return Err(error);
            }
            debug!(%error, ?change, "cannot update the CSI driver info; retrying");
            sleep(jittered(delay)).await;
            delay *= 5;
            tries += 1;
        }
    }

    async fn attempt(&self, change: CsiNodeChange<'_>) -> Result<(), CsiNodeError> {
        match change {
            CsiNodeChange::Begin | CsiNodeChange::Update(_) => self.write_csi_node(change).await,
            CsiNodeChange::Install(_) => {
                self.write_node(change).await?;
                self.write_csi_node(change).await
            }
            CsiNodeChange::Uninstall(_) => {
                self.write_csi_node(change).await?;
                self.write_node(change).await
            }
        }
    }

    async fn write_node(&self, change: CsiNodeChange<'_>) -> Result<(), CsiNodeError> {
        let node = ask(self.nodes.get(&self.node_name)).await;
        let node = node.map_err(CsiNodeError::Node)?;
        let Some(patch) = node_patch(&node.metadata, change)? else {
            return Ok(());
        };
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        // Through the status subresource, as upstream: some clients may only write that.
        let patched = self.nodes.patch_status(&self.node_name, &params, &patch);
        ask(patched).await.map_err(CsiNodeError::Node)?;
        Ok(())
    }

    async fn write_csi_node(&self, change: CsiNodeChange<'_>) -> Result<(), CsiNodeError> {
        let failed = CsiNodeError::CsiNode;
        let known = match (ask(self.csi_nodes.get(&self.node_name)).await, change) {
            (Ok(known), _) => known,
            (Err(error), CsiNodeChange::Uninstall(_)) if error.is_not_found() => return Ok(()),
            (Err(error), _) if error.is_not_found() => {
                let mut new = new_csi_node(&self.node_name, self.uid()?);
                make(&mut new, change);
                let params = PostParams::default();
                let created = ask(self.csi_nodes.create(&params, &new)).await;
                return created.map(drop).map_err(failed);
            }
            (Err(error), _) => return Err(failed(error)),
        };
        if !self.is_ours(&known.metadata)? {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: known.metadata.uid,
                resource_version: None,
            });
            let deleted = ask(self.csi_nodes.delete(&self.node_name, &params)).await;
            deleted.map_err(failed)?;
            return Err(CsiNodeError::OtherOwner(self.node_name.clone()));
        }
        let mut wanted = known.clone();
        make(&mut wanted, change);
        if wanted == known {
            return Ok(());
        }
        let params = PostParams::default();
        let replaced = self.csi_nodes.replace(&self.node_name, &params, &wanted);
        ask(replaced).await.map(drop).map_err(failed)
    }

    fn uid(&self) -> Result<String, CsiNodeError> {
        let node = self.node.borrow();
        let uid = node.as_ref().and_then(|node| node.metadata.uid.clone());
        uid.ok_or(CsiNodeError::NodeUnknown)
    }

    /// Whether an object belongs to this node, and not to an earlier node of the same name.
    fn is_ours(&self, metadata: &ObjectMeta) -> Result<bool, CsiNodeError> {
        let uid = self.uid()?;
        let mut owners = metadata.owner_references.iter().flatten();
        Ok(owners
            .any(|owner| owner.kind == "Node" && owner.name == self.node_name && owner.uid == uid))
    }
}

fn new_csi_node(name: &str, uid: String) -> CSINode {
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid,
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec::default(),
    }
}

/// Applies a change to a `CSINode`.
fn make(csi_node: &mut CSINode, change: CsiNodeChange<'_>) {
    let drivers = &mut csi_node.spec.drivers;
    match change {
        CsiNodeChange::Begin => {}
        CsiNodeChange::Install(driver) | CsiNodeChange::Update(driver) => {
            let wanted = entry(driver);
            if !drivers.iter().any(|known| is_same(known, &wanted)) {
                drivers.retain(|known| known.name != driver.name);
                drivers.push(wanted);
            }
        }
        CsiNodeChange::Uninstall(driver) => {
            drivers.retain(|known| known.name != driver);
            return;
        }
    }
    let annotations = csi_node.metadata.annotations.get_or_insert_default();
    let known = annotations
        .get(MIGRATED)
        .map(|known| known.split(',').collect());
    if known != Some(BTreeSet::from(in_tree::PLUGINS)) {
        annotations.insert(MIGRATED.to_owned(), in_tree::PLUGINS.join(","));
    }
}

fn entry(driver: &DriverInfo) -> CSINodeDriver {
    if driver.max_volumes < 0 {
        let (driver, limit) = (&driver.name, driver.max_volumes);
        warn!(driver, limit, "the volume limit of a CSI driver is invalid");
    }
    let count = i32::try_from(driver.max_volumes.min(i64::from(i32::MAX)));
    let count = count.ok().filter(|count| *count > 0);
    let topology_keys: Vec<String> = driver.topology.keys().cloned().collect();
    CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: (!topology_keys.is_empty()).then_some(topology_keys),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    }
}

/// Whether two entries are equivalent.
fn is_same(one: &CSINodeDriver, other: &CSINodeDriver) -> bool {
    fn parts(driver: &CSINodeDriver) -> (&str, &str, BTreeSet<&String>, Option<i32>) {
        let keys = driver.topology_keys.iter().flatten().collect();
        let count = driver.allocatable.as_ref().and_then(|a| a.count);
        (&driver.name, &driver.node_id, keys, count)
    }
    parts(one) == parts(other)
}

/// The patch of the node for a change; `None` if nothing has to change.
fn node_patch(node: &ObjectMeta, change: CsiNodeChange<'_>) -> Result<Option<Value>, CsiNodeError> {
    let annotations = node.annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(NODE_IDS));
    let known: BTreeMap<String, String> = match value.map(String::as_str) {
        None | Some("" | "null") => BTreeMap::new(),
        Some(value) => serde_json::from_str(value).map_err(|source| CsiNodeError::Annotation {
            value: value.to_owned(),
            source,
        })?,
    };
    let mut ids = known.clone();
    let mut labels = Map::new();
    match change {
        CsiNodeChange::Begin | CsiNodeChange::Update(_) => {}
        CsiNodeChange::Install(driver) => {
            ids.insert(driver.name.clone(), driver.node_id.clone());
            for (label, reported) in &driver.topology {
                match node.labels.as_ref().and_then(|labels| labels.get(label)) {
                    Some(existing) if existing == reported => {}
                    Some(existing) => {
                        return Err(CsiNodeError::Collision {
                            label: label.clone(),
                            reported: reported.clone(),
                            existing: existing.clone(),
                        });
                    }
                    None => drop(labels.insert(label.clone(), json!(reported))),
                }
            }
        }
        CsiNodeChange::Uninstall(driver) => drop(ids.remove(driver)),
    }
    let mut metadata = Map::new();
    if ids != known {
        let value = (!ids.is_empty()).then(|| json!(ids).to_string());
        metadata.insert("annotations".to_owned(), json!({NODE_IDS: value}));
    }
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), labels.into());
    }
    Ok((!metadata.is_empty()).then(|| json!({"metadata": metadata})))
}

#[cfg(test)]
#[path = "csi_node_tests.rs"]
mod tests;
