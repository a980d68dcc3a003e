//! Mirror pods: represent the static pods of this node in the API server.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::PostParams};
use kubelet_api_client::{
    objects::Objects,
    request::{ApiError, ask, delete_at_once},
};
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::identity::{self, CONFIG_HASH, CONFIG_MIRROR, PodUid};
use parking_lot::Mutex;
use retry_delay::RetryDelay;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::manager::PodManager;

/// First and longest delay while the API server is unreachable.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Between attempts to get the node object.
const NODE_PERIOD: Duration = Duration::from_secs(1);
/// How long to wait for the watch event of a request before repeating it.
const ECHO: Duration = Duration::from_secs(10);

/// Reconciles mirror pods. Callers never wait: static pods run with or without an API server.
pub struct MirrorPods {
    client: Client,
    node_name: String,
    /// Provides the node object, which owns the mirror pods.
    objects: Arc<dyn Objects>,
    pods: Arc<PodManager>,
    pending: Mutex<PendingChanges>,
    changed: Notify,
}

impl fmt::Debug for MirrorPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorPods")
            .field("pending", &*self.pending.lock())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PendingChanges {
    /// Each with a number, which changes when the change is requested again.
    open: BTreeMap<Name, (u64, MirrorChange)>,
    count: u64,
    /// Requests to the API server and their time, until a watch event confirms them.
    requested: BTreeMap<Name, (MirrorChange, Instant)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    namespace: String,
    name: String,
}

impl Name {
    fn of(pod: &Pod) -> Self {
        Self {
            namespace: identity::namespace(pod).to_owned(),
            name: identity::name(pod).to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MirrorChange {
    /// The static pod of this UID needs a mirror pod.
    Create(PodUid),
    /// The mirror pod of this UID must be deleted.
    Delete(PodUid),
}

/// Whether to expect a watch event.
enum RequestOutcome {
    /// The API server performed the request.
    Sent,
    /// No request was necessary.
    NotNeeded,
}

/// Why a change is not made yet.
#[derive(Debug, thiserror::Error)]
enum MirrorError {
    #[error("the node {0:?} is not registered, or is being deleted")]
    NoNode(String),
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl MirrorPods {
    /// Mirror pods of the static pods in `pods`, owned by the node of `objects`.
    pub fn new(
        client: Client,
        node_name: String,
        objects: Arc<dyn Objects>,
        pods: Arc<PodManager>,
    ) -> Self {
        Self {
            client,
            node_name,
            objects,
            pods,
            pending: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Ensures that a static pod that runs has a mirror pod. Ignores other pods.
    pub fn mirror(&self, pod: &Pod) {
        if !identity::is_static(pod) {
            return;
        }
        let mirror = self.pods.mirror(&identity::full_name(pod));
        if mirror.is_some_and(|mirror| is_good(&mirror, pod)) {
            self.pending.lock().open.remove(&Name::of(pod));
        } else {
            self.request(Name::of(pod), MirrorChange::Create(PodUid::of(pod)));
        }
    }

    /// Deletes a mirror pod whose static pod is gone.
    pub fn remove(&self, mirror: &Pod) {
        self.request(Name::of(mirror), MirrorChange::Delete(PodUid::of(mirror)));
    }

    /// A mirror pod changed: the last request is confirmed.
    pub fn confirm(&self, mirror: &Pod) {
        self.pending.lock().requested.remove(&Name::of(mirror));
    }

    /// Processes requests until `cancel`.
    pub async fn run(&self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(self.work()).await;
    }

    fn request(&self, name: Name, change: MirrorChange) {
        let mut pending = self.pending.lock();
        let requested = pending.requested.get(&name);
        if requested.is_some_and(|(requested, at)| *requested == change && at.elapsed() < ECHO) {
            return;
        }
        pending.count += 1;
        let number = pending.count;
        pending.open.insert(name, (number, change));
        drop(pending);
        self.changed.notify_one();
    }

    async fn work(&self) {
        let mut delay = RetryDelay::new(RETRY_BASE, RETRY_MAX);
        loop {
            let open = self.pending.lock().open.clone();
            let mut retry = None;
            for (name, (number, change)) in open {
                self.note_request(&name, &change);
                let outcome = self.apply(&name, &change).await;
                if !matches!(outcome, Ok(RequestOutcome::Sent)) {
                    self.pending.lock().requested.remove(&name);
                }
                match outcome {
                    Ok(_) => self.forget(&name, number),
                    Err(MirrorError::NoNode(node)) => {
                        debug!(node, "mirror pods wait for the Node object");
                        retry = retry.max(Some(NODE_PERIOD));
                    }
                    Err(MirrorError::Api(error)) if error.is_away() => {
                        retry = Some(jittered(delay.after_failure()));
                        if error.is_silence() {
                            // The other requests would not be answered either.
                            break;
                        }
                    }
                    Err(error) => {
                        warn!(
                            pod = %format_args!("{}_{}", name.name, name.namespace), %error,
                            "cannot update the mirror pod; retrying on the static pod's next sync"
                        );
                        self.forget(&name, number);
                    }
                }
            }
            if let Some(retry) = retry {
                tokio::time::sleep(retry).await;
            } else {
                delay.reset();
                self.changed.notified().await;
            }
        }
    }

    async fn apply(
        &self,
        name: &Name,
        change: &MirrorChange,
    ) -> Result<RequestOutcome, MirrorError> {
        let uid = match change {
            MirrorChange::Create(uid) => uid,
            MirrorChange::Delete(uid) => {
                self.delete(name, uid).await?;
                return Ok(RequestOutcome::Sent);
            }
        };
        // It may have been removed meanwhile.
        let Some(pod) = self.pods.get(uid) else {
            return Ok(RequestOutcome::NotNeeded);
        };
        let mirror = self.pods.mirror(&identity::full_name(&pod));
        if mirror.as_ref().is_some_and(|mirror| is_good(mirror, &pod)) {
            return Ok(RequestOutcome::NotNeeded);
        }
        let node = self.objects.node().await.ok().flatten();
        let node = node.filter(|node| node.metadata.deletion_timestamp.is_none());
        let Some(node) = node.filter(|node| node.metadata.uid.is_some()) else {
            return Err(MirrorError::NoNode(self.node_name.clone()));
        };
        if let Some(mirror) = mirror {
            self.delete(name, &PodUid::of(&mirror)).await?;
        }
        let mirror = self.mirror_of(&pod, &node);
        let api = Api::<Pod>::namespaced(self.client.clone(), &name.namespace);
        let params = PostParams::default();
        match ask(api.create(&params, &mirror)).await {
            Ok(created) => {
                info!(
                    pod = identity::full_name(&pod), pod_uid = %uid,
                    mirror_uid = created.metadata.uid, "created the mirror pod"
                );
                Ok(RequestOutcome::Sent)
            }
            // The watch has yet to report the existing pod. If it is not a valid mirror pod, the
            // static pod's next sync detects that.
            Err(error) if error.is_already_exists() => Ok(RequestOutcome::Sent),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, name: &Name, uid: &PodUid) -> Result<(), ApiError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &name.namespace);
        if delete_at_once(&api, &name.name, uid.as_str()).await? {
            info!(
                pod = %format_args!("{}_{}", name.name, name.namespace), mirror_uid = %uid,
                "deleted the mirror pod"
            );
        }
        Ok(())
    }

    fn mirror_of(&self, pod: &Pod, node: &Node) -> Pod {
        let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
        let hash = identity::annotation(pod, CONFIG_HASH).unwrap_or_default();
        annotations.insert(CONFIG_MIRROR.to_owned(), hash.to_owned());
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node_name.clone(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        Pod {
            metadata: ObjectMeta {
                name: pod.metadata.name.clone(),
                namespace: pod.metadata.namespace.clone(),
                labels: pod.metadata.labels.clone(),
                annotations: Some(annotations),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: pod.spec.clone(),
            status: None,
        }
    }

    fn note_request(&self, name: &Name, change: &MirrorChange) {
        let mut pending = self.pending.lock();
        pending.requested.retain(|_, (_, at)| at.elapsed() < ECHO);
        let requested = (change.clone(), Instant::now());
        pending.requested.insert(name.clone(), requested);
    }

    /// Removes a change, unless another one replaced it.
    fn forget(&self, name: &Name, number: u64) {
        let mut pending = self.pending.lock();
        let open = pending.open.get(name);
        if open.is_some_and(|(now, _)| *now == number) {
            pending.open.remove(name);
        }
    }
}

/// Whether the mirror pod of a static pod is up to date.
fn is_good(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none() && identity::is_mirror_of(mirror, pod)
}
