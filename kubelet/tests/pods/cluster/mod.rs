//! Pods of a node in a cluster.

pub(crate) mod api;
mod checkpoint;
mod eviction;
mod mirrors;
mod pods;
mod requests;
mod statuses;

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kubelet::{
    kubelet::{Kubelet, KubeletParts, Membership, options::KubeletOptions},
    sources::{
        apiserver::ApiSource,
        pod_config::{PodConfig, PodSet, SourceHandle},
        static_pod::{Origin, static_pod},
        update::Source,
    },
};
use kubelet_api_client::objects::Objects;
use kubelet_checkpoint::{Checkpoint, CheckpointOptions, objects::CheckpointedObjects};
use kubelet_cri_client::CriClient;
use kubelet_pod_spec::identity::PodUid;
use serde_json::{Value, json};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use self::api::Api;
use crate::{
    node::{IMAGE, Node, SECOND, pod, until},
    objects::MemoryObjects,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A node, and the API server of its cluster.
struct Joined {
    node: Node,
    objects: Arc<MemoryObjects>,
    api: Api,
    /// The watched node object; `None` unless a test sets it.
    object: watch::Sender<Option<Arc<NodeObject>>>,
    /// Whether the node controller had given the node up.
    was_given_up: Arc<OnceLock<bool>>,
    /// The checkpoint from which kubelets start without the API server.
    checkpoint: Option<CheckpointOptions>,
}

/// A kubelet of the node.
struct Member {
    kubelet: Kubelet,
    file: SourceHandle,
    register: Option<oneshot::Sender<()>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Joined {
    fn new() -> Self {
        let objects = Arc::<MemoryObjects>::default();
        objects.put(
            "node",
            json!({"metadata": {"name": "node", "uid": "node-uid"}}),
        );
        Self {
            node: Node::with_objects(objects.clone()),
            objects,
            api: Api::new(),
            object: watch::Sender::new(None),
            was_given_up: Arc::default(),
            checkpoint: None,
        }
    }

    /// Starts a kubelet whose node is registered.
    async fn start(&self) -> Member {
        self.start_with(self.node.options()).await
    }

    async fn start_with(&self, options: KubeletOptions) -> Member {
        let mut member = self.unregistered(options).await;
        member.register.take().unwrap().send(()).unwrap();
        member
    }

    /// Starts a kubelet that has read its static pods; there are none.
    async fn unregistered(&self, options: KubeletOptions) -> Member {
        let timeout = options.cri.request_timeout;
        let runtime = &self.node.runtime;
        let cri = CriClient::from_channels(runtime.channel(), runtime.channel(), timeout);
        let (config, updates) = PodConfig::new();
        let (file, api) = (config.source(Source::File), config.source(Source::Api));
        let client = self.api.client();
        let checkpoint = match &self.checkpoint {
            Some(kept) => Some(Arc::new(Checkpoint::open(kept, "node").await.unwrap())),
            None => None,
        };
        let objects: Arc<dyn Objects> = match &checkpoint {
            Some(kept) => {
                let asked = Arc::clone(&self.objects);
                let is_away = move || asked.is_away();
                let objects = self.node.objects.clone();
                Arc::new(CheckpointedObjects::new(objects, kept.clone(), is_away))
            }
            None => self.node.objects.clone(),
        };
        let cancel = CancellationToken::new();
        let managers = self.node.managers(&options);
        let parts = KubeletParts {
            options,
            cri,
            objects,
            membership: Some(Membership {
                client: client.clone(),
                node: self.object.subscribe(),
                was_given_up: Arc::clone(&self.was_given_up),
                last_node: checkpoint.as_ref().and_then(|kept| kept.node()),
                last_statuses: checkpoint
                    .as_ref()
                    .map(|kept| kept.last_statuses())
                    .unwrap_or_default(),
            }),
            managers,
            events: self.node.events.clone(),
            sources_ready: Arc::new(move || config.seen_all_sources()),
        };
        let (kubelet, pods) = Kubelet::new(parts, &cancel);
        let (register, registered) = oneshot::channel();
        let source = ApiSource {
            client,
            node_name: "node".to_owned(),
            node_known: Box::pin(async move { registered.await.unwrap() }),
            checkpoint: checkpoint.clone(),
        };
        let running = kubelet.clone();
        let task = tokio::spawn({
            let cancel = cancel.clone();
            async move {
                let keep = async {
                    if let Some(kept) = checkpoint {
                        let changes = kubelet.status_changes();
                        let status = |uid: &PodUid| kubelet.status(uid);
                        tokio::join!(
                            kept.follow_statuses(changes, status, cancel.clone()),
                            kept.run(cancel.clone())
                        );
                    }
                };
                tokio::join!(pods.run(updates), source.run(api, cancel.clone()), keep);
            }
        });
        let member = Member {
            kubelet: running,
            file,
            register: Some(register),
            cancel,
            task,
        };
        member.set_static(Vec::new()).await;
        member
    }

    async fn until_phase(&self, name: &str, phase: &str, limit: Duration) {
        let what = format!("{name} to be {phase} at the API server");
        until(&what, limit, || self.api.phase(name) == phase).await;
    }

    /// Binds a pod, and waits until it is ready at the API server.
    async fn run(&self, name: &str, spec: Value) {
        self.api.bind(pod(name, name, spec));
        until("the pod to be ready", 5 * SECOND, || {
            self.api.condition(name, "Ready") == "True"
        })
        .await;
    }
}

impl Member {
    /// Stops the kubelet; the pods keep running.
    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }

    async fn set_static(&self, pods: Vec<Pod>) {
        let pods = pods.into_iter().map(Arc::new).collect();
        let complete = true;
        self.file.set(PodSet { pods, complete }).await.unwrap();
    }
}

/// The static pod `static-node` with one container that runs `command`.
fn manifest(command: &str) -> Pod {
    manifest_of(command, "Always")
}

/// Like [`manifest`], with restart policy `Never`.
fn once(command: &str) -> Pod {
    manifest_of(command, "Never")
}

fn manifest_of(command: &str, restart_policy: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": "static", "namespace": "default", "labels": {"tier": "node"}},
        "spec": {"restartPolicy": restart_policy, "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": [command],
            "resources": {"limits": {"cpu": "0.5"}}
        }]}
    });
    let pod = serde_json::from_value(pod).unwrap();
    static_pod(
        pod,
        Origin::File(Path::new("/manifests/static.yaml")),
        "node",
    )
    .unwrap()
}
