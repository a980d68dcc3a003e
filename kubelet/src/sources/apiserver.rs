//! The API source: the pods that the API server bound to this node.

use std::{collections::BTreeMap, fmt, pin::pin, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use kubelet_api_client::list_watch::{ListWatch, ObjectChange};
use kubelet_checkpoint::Checkpoint;
use kubelet_pod_spec::identity::{self, PodUid};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::sources::pod_config::{Closed, PodSet, SourceHandle};

/// How long to wait for the API server's pods before starting those of the checkpoint. This avoids
/// starting pods that the API server would remove right away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lists and watches the pods of one node.
pub struct ApiSource {
    /// Client of the API server.
    pub client: Client,
    /// Name of this node.
    pub node_name: String,
    /// Completes once it is known whether the node object exists: admission depends on its
    /// contents.
    pub node_known: BoxFuture<'static, ()>,
    /// Stores the pods, and provides those to start while the API server is unreachable.
    pub checkpoint: Option<Arc<Checkpoint>>,
}

impl fmt::Debug for ApiSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiSource")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl ApiSource {
    /// Sends the pods to `mux` until `cancel`, or until the receiver is gone. While the API server
    /// is unreachable, the pods stay as it last sent them; with a checkpoint, those that an earlier
    /// kubelet received are included.
    pub async fn run(self, mux: SourceHandle, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(self.tell(mux)).await;
    }

    async fn tell(self, mux: SourceHandle) -> Result<(), Closed> {
        let Self {
            client,
            node_name,
            node_known,
            checkpoint,
        } = self;
        let checkpoint = checkpoint.as_deref();
        let api = Api::<Pod>::all(client);
        let selector = format!("spec.nodeName={node_name}");
        let mut pods = ListWatch::new(api, selector);
        // A full name belongs to one pod at a time.
        let mut names = BTreeMap::<String, PodUid>::new();
        let mut change = {
            let mut first = pin!(async {
                debug!("waiting to learn from the API server whether the node is registered");
                node_known.await;
                info!(node = node_name, "watching pods at the API server");
                pods.next().await
            });
            match checkpoint {
                None => first.await,
                Some(checkpoint) => match timeout(PATIENCE, first.as_mut()).await {
                    Ok(change) => change,
                    Err(_) => {
                        let pods = checkpoint.restored();
                        if !pods.is_empty() {
                            info!(
                                pods = pods.len(),
                                "the API server did not list the pods of this node within \
                                 {PATIENCE:?}; starting those from the checkpoint"
                            );
                        }
                        mux.restore(pods).await?;
                        first.await
                    }
                },
            }
        };
        loop {
            match change {
                ObjectChange::Replaced(pods) => {
                    let pods: Vec<Arc<Pod>> = pods.into_iter().map(lean).collect();
                    if let Some(checkpoint) = checkpoint {
                        checkpoint.set_pods(&pods);
                    }
                    let named = pods.iter();
                    names = named
                        .map(|pod| (identity::full_name(pod), PodUid::of(pod)))
                        .collect();
                    let complete = true;
                    mux.set(PodSet { pods, complete }).await?;
                }
                ObjectChange::Updated(pod) => {
                    let pod = lean(pod);
                    if let Some(checkpoint) = checkpoint {
                        checkpoint.put_pod(&pod);
                    }
                    let uid = PodUid::of(&pod);
                    let before = names.insert(identity::full_name(&pod), uid.clone());
                    let gone = before.filter(|before| *before != uid);
                    mux.change(gone.as_ref(), Some(pod)).await?;
                }
                ObjectChange::Deleted(pod) => {
                    if let Some(checkpoint) = checkpoint {
                        checkpoint.remove_pod(&pod);
                    }
                    let (full_name, uid) = (identity::full_name(&pod), PodUid::of(&pod));
                    if names.get(&full_name) == Some(&uid) {
                        names.remove(&full_name);
                    }
                    mux.change(Some(&uid), None).await?;
                }
            }
            change = pods.next().await;
        }
    }
}

/// Drops the managed fields: they are large, and nothing on a node uses them.
fn lean(mut pod: Pod) -> Arc<Pod> {
    pod.metadata.managed_fields = None;
    Arc::new(pod)
}
