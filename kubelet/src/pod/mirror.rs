//! Mirror pods: what stands at the API server for the static pods of this node, so
//! that they are seen there.

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
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::manager::PodManager;

/// First and longest delay while the API server is away.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Between two looks for the node's object.
const NODE_PERIOD: Duration = Duration::from_secs(1);
/// What was done is heard of after no longer than this.
const ECHO: Duration = Duration::from_secs(10);

/// Makes mirror pods what they are to be. Whoever wishes for something waits for
/// nothing: static pods run whether or not there is an API server.
pub struct MirrorPods {
    client: Client,
    node_name: String,
    /// Where the node's object comes from, which owns the mirror pods.
    objects: Arc<dyn Objects>,
    pods: Arc<PodManager>,
    wishes: Mutex<Wishes>,
    wished: Notify,
}

impl fmt::Debug for MirrorPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorPods")
            .field("wishes", &*self.wishes.lock())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Wishes {
    /// Each with its number: one that is repeated is another one.
    open: BTreeMap<Name, (u64, Wish)>,
    count: u64,
    /// What was asked of the API server, and when, until something is heard of it.
    asked: BTreeMap<Name, (Wish, Instant)>,
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
enum Wish {
    /// A mirror pod of the static pod of this UID.
    Mirrored(PodUid),
    /// The mirror pod of this UID is to go.
    Gone(PodUid),
}

/// Whether something is to be heard of a wish.
enum Asked {
    /// The API server did what it was asked for.
    Yes,
    /// There was nothing to ask for.
    Nothing,
}

/// Why a wish is yet to be fulfilled.
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
            wishes: Mutex::default(),
            wished: Notify::new(),
        }
    }

    /// A static pod is run, and is to have a mirror pod. Nothing, for other pods.
    pub fn mirror(&self, pod: &Pod) {
        if !identity::is_static(pod) {
            return;
        }
        let mirror = self.pods.mirror(&identity::full_name(pod));
        if mirror.is_some_and(|mirror| is_good(&mirror, pod)) {
            self.wishes.lock().open.remove(&Name::of(pod));
        } else {
            self.wish(Name::of(pod), Wish::Mirrored(PodUid::of(pod)));
        }
    }

    /// The static pod of a mirror pod is gone, and so is the mirror to be.
    pub fn remove(&self, mirror: &Pod) {
        self.wish(Name::of(mirror), Wish::Gone(PodUid::of(mirror)));
    }

    /// Something happened to a mirror pod: what was asked for before has been heard of.
    pub fn heard(&self, mirror: &Pod) {
        self.wishes.lock().asked.remove(&Name::of(mirror));
    }

    /// Does what is wished for until `cancel`.
    pub async fn run(&self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(self.work()).await;
    }

    fn wish(&self, name: Name, wish: Wish) {
        let mut wishes = self.wishes.lock();
        let asked = wishes.asked.get(&name);
        if asked.is_some_and(|(asked, at)| *asked == wish && at.elapsed() < ECHO) {
            return;
        }
        wishes.count += 1;
        let number = wishes.count;
        wishes.open.insert(name, (number, wish));
        drop(wishes);
        self.wished.notify_one();
    }

    async fn work(&self) {
        let mut delay = RETRY_BASE;
        loop {
            let open = self.wishes.lock().open.clone();
            let mut retry = None;
            for (name, (number, wish)) in open {
                self.ask_for(&name, &wish);
                let fulfilled = self.fulfil(&name, &wish).await;
                if !matches!(fulfilled, Ok(Asked::Yes)) {
                    self.wishes.lock().asked.remove(&name);
                }
                match fulfilled {
                    Ok(_) => self.forget(&name, number),
                    Err(MirrorError::NoNode(node)) => {
                        debug!(node, "mirror pods wait for their node");
                        retry = retry.max(Some(NODE_PERIOD));
                    }
                    Err(MirrorError::Api(error)) if error.is_away() => {
                        retry = Some(jittered(delay));
                        delay = (delay * 2).min(RETRY_MAX);
                        if error.is_silence() {
                            // Nor would it answer for the others.
                            break;
                        }
                    }
                    Err(error) => {
                        warn!(
                            pod = %format_args!("{}_{}", name.name, name.namespace), %error,
                            "cannot mirror the static pod; its next sync tries again"
                        );
                        self.forget(&name, number);
                    }
                }
            }
            if let Some(retry) = retry {
                tokio::time::sleep(retry).await;
            } else {
                delay = RETRY_BASE;
                self.wished.notified().await;
            }
        }
    }

    async fn fulfil(&self, name: &Name, wish: &Wish) -> Result<Asked, MirrorError> {
        let uid = match wish {
            Wish::Mirrored(uid) => uid,
            Wish::Gone(uid) => {
                self.delete(name, uid).await?;
                return Ok(Asked::Yes);
            }
        };
        // It may have been taken away meanwhile.
        let Some(pod) = self.pods.get(uid) else {
            return Ok(Asked::Nothing);
        };
        let mirror = self.pods.mirror(&identity::full_name(&pod));
        if mirror.as_ref().is_some_and(|mirror| is_good(mirror, &pod)) {
            return Ok(Asked::Nothing);
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
                Ok(Asked::Yes)
            }
            // This kubelet is yet to hear of it; or it is in the way, and the pod's next
            // sync finds it so.
            Err(error) if error.is_already_exists() => Ok(Asked::Yes),
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

    fn ask_for(&self, name: &Name, wish: &Wish) {
        let mut wishes = self.wishes.lock();
        wishes.asked.retain(|_, (_, at)| at.elapsed() < ECHO);
        let asked = (wish.clone(), Instant::now());
        wishes.asked.insert(name.clone(), asked);
    }

    /// Takes a wish back, if none came in its place.
    fn forget(&self, name: &Name, number: u64) {
        let mut wishes = self.wishes.lock();
        let open = wishes.open.get(name);
        if open.is_some_and(|(now, _)| *now == number) {
            wishes.open.remove(name);
        }
    }
}

/// Whether nothing is to be done about the mirror pod of a static pod.
fn is_good(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none() && identity::is_mirror_of(mirror, pod)
}
