//! Watches this node's API object.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use kubelet_api_client::list_watch::{ListWatch, ObjectChange};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Watches a node.
#[derive(Debug)]
pub struct NodeWatch {
    changes: ListWatch<Node>,
    node: watch::Sender<Option<Arc<Node>>>,
    listed: watch::Sender<bool>,
    was_given_up: Arc<OnceLock<bool>>,
}

impl NodeWatch {
    /// A watch of the node `name`.
    pub fn new(client: Client, name: &str) -> Self {
        let selector = format!("metadata.name={name}");
        Self {
            changes: ListWatch::new(Api::all(client), selector),
            node: watch::Sender::new(None),
            listed: watch::Sender::new(false),
            was_given_up: Arc::default(),
        }
    }

    /// The node object as it changes; `None` before the first list, and when it does not exist.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    /// Whether the first list has completed.
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.listed.subscribe()
    }

    /// Whether the node controller had given the node up before this kubelet reported for the first
    /// time; not set before the first list.
    pub fn was_given_up(&self) -> Arc<OnceLock<bool>> {
        Arc::clone(&self.was_given_up)
    }

    /// Watches the node until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        loop {
            let node = match self.changes.next().await {
                ObjectChange::Replaced(nodes) => nodes.into_iter().next(),
                ObjectChange::Updated(node) => Some(node),
                ObjectChange::Deleted(_) => None,
            };
            let is_unknown = || node.as_ref().is_some_and(is_given_up);
            self.was_given_up.get_or_init(is_unknown);
            self.node.send_replace(node.map(Arc::new));
            self.listed.send_replace(true);
        }
    }
}

/// The node controller sets `Ready` to `Unknown` when the kubelet has been silent for too long.
fn is_given_up(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}
