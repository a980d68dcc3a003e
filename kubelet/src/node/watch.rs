//! This node's object as the API server has it, followed.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{apiserver::error, backoff::jittered};

/// How long the API server may keep a watch, in seconds.
const WATCH_SECONDS: u32 = 290;
/// After a failure; doubled for each further one.
const FIRST_RETRY: Duration = Duration::from_millis(800);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Follows a node until cancelled: reads it once, then watches it.
#[derive(Debug)]
pub struct NodeWatch {
    nodes: Api<Node>,
    name: String,
    node: watch::Sender<Option<Arc<Node>>>,
    /// Failures since the last success.
    failures: u32,
}

/// What comes after `node` is still to be seen.
fn move_on(version: &mut String, node: &Node) {
    if let Some(newer) = &node.metadata.resource_version {
        version.clone_from(newer);
    }
}

/// Why a watch is over.
enum End {
    /// It is to be begun again where it was.
    Again,
    /// What it followed is too old: it is to be read again.
    Relist,
}

impl NodeWatch {
    /// Follows the node `name`.
    pub fn new(client: Client, name: &str) -> Self {
        Self {
            nodes: Api::all(client),
            name: name.to_owned(),
            node: watch::Sender::new(None),
            failures: 0,
        }
    }

    /// The object as it changes; `None` until it is known, and when there is none.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    /// Follows the node until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        loop {
            // A list limited to one, so that a node that is not there yet can be watched.
            let params = kube::api::ListParams::default().fields(&self.field());
            match self.nodes.list(&params).await {
                Ok(list) => {
                    self.failures = 0;
                    let mut version = list.metadata.resource_version.unwrap_or_default();
                    let node = list.items.into_iter().next();
                    self.take(node);
                    while let End::Again = self.watch(&mut version).await {}
                }
                Err(problem) => self.failed("read", &problem).await,
            }
        }
    }

    fn field(&self) -> String {
        format!("metadata.name={}", self.name)
    }

    fn take(&self, node: Option<Node>) {
        self.node.send_replace(node.map(Arc::new));
    }

    /// Watches from `version` on, and moves that.
    async fn watch(&mut self, version: &mut String) -> End {
        let params = WatchParams::default()
            .fields(&self.field())
            .timeout(WATCH_SECONDS);
        let events = match self.nodes.watch(&params, version).await {
            Ok(events) => events,
            Err(problem) => {
                let is_expired = error::status_code(&problem) == Some(410);
                self.failed("watch", &problem).await;
                return if is_expired { End::Relist } else { End::Again };
            }
        };
        let mut events = std::pin::pin!(events);
        let mut is_idle = true;
        while let Some(event) = events.next().await {
            is_idle = false;
            let node = match event {
                Ok(WatchEvent::Added(node) | WatchEvent::Modified(node)) => {
                    move_on(version, &node);
                    Some(node)
                }
                Ok(WatchEvent::Deleted(node)) => {
                    move_on(version, &node);
                    None
                }
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    continue;
                }
                Ok(WatchEvent::Error(status)) => {
                    debug!(
                        node = self.name,
                        error = status.message,
                        "The watch of the node ended"
                    );
                    return End::Relist;
                }
                Err(problem) => {
                    self.failed("watch", &problem).await;
                    return End::Again;
                }
            };
            self.failures = 0;
            self.take(node);
        }
        if is_idle {
            // One that ends at once is not to be begun again at once.
            time::sleep(jittered(FIRST_RETRY)).await;
        }
        End::Again
    }

    /// Says so, once, and waits.
    async fn failed(&mut self, what: &str, problem: &kube::Error) {
        if self.failures == 0 && !error::is_unreachable(problem) {
            warn!(
                node = self.name,
                error = error::text(problem),
                "Cannot {what} the node; trying on"
            );
        }
        let delay = FIRST_RETRY * 2_u32.saturating_pow(self.failures.min(8));
        self.failures = self.failures.saturating_add(1);
        time::sleep(jittered(delay.min(MAX_RETRY))).await;
    }
}
