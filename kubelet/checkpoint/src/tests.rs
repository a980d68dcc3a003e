use std::{fs, future::pending};

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequestSpec, TokenRequestStatus},
    certificates::v1beta1::ClusterTrustBundle,
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service},
    node::v1::RuntimeClass,
    storage::v1::CSIDriver,
};
use kubelet_api_client::objects::{Answer, ObjectError, Objects};
use serde_json::{Value, json};

use super::{objects::CheckpointedObjects, *};

/// The behaviour of the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ServerBehavior {
    /// It returns an object of the requested name.
    #[default]
    Serves,
    NotFound,
    Refuses,
    Away,
    Silent,
    /// It answers, but its watches have no data yet.
    Slow,
}

#[derive(Debug, Default)]
struct Server(Mutex<ServerBehavior>);

impl Server {
    fn answer<'a, T: Send + 'a>(
        &self,
        resource: &'static str,
        name: &str,
        object: impl FnOnce() -> T,
    ) -> Answer<'a, T> {
        let (name, message) = (name.to_owned(), "because".to_owned());
        let answer = match *self.0.lock() {
            ServerBehavior::Serves => Ok(object()),
            ServerBehavior::NotFound => Err(ObjectError::NotFound { resource, name }),
            ServerBehavior::Refuses => Err(ObjectError::Refused {
                resource,
                name,
                message,
            }),
            ServerBehavior::Away => Err(ObjectError::Unavailable {
                resource,
                name,
                message,
            }),
            ServerBehavior::Silent => return Box::pin(pending()),
            ServerBehavior::Slow => Err(ObjectError::NotSynced { resource }),
        };
        Box::pin(std::future::ready(answer))
    }

    fn object<'a, K: DeserializeOwned + Send + Sync + 'a>(
        &self,
        resource: &'static str,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Answer<'a, Arc<K>> {
        object["metadata"] = json!({"namespace": namespace, "name": name, "resourceVersion": "1"});
        self.answer(resource, name, || {
            Arc::new(serde_json::from_value(object).unwrap())
        })
    }
}

impl Objects for Server {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        self.object("configmap", namespace, name, json!({"data": {"a": "1"}}))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Arc<Secret>> {
        self.object("secret", namespace, name, json!({}))
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        let claim = json!({"spec": {"volumeName": "pv"}});
        self.object("persistentvolumeclaim", namespace, name, claim)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        self.object("persistentvolume", "", name, json!({}))
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        self.object("csidriver", "", name, json!({"spec": {}}))
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        let class = json!({"handler": "runsc"});
        self.object("runtimeclass.node.k8s.io", "", name, class)
    }

    fn service_account_token<'a>(
        &'a self,
        _: &'a str,
        service_account: &'a str,
        _: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        self.answer("serviceaccount", service_account, || TokenRequestStatus {
            token: Some("token".to_owned()),
            ..TokenRequestStatus::default()
        })
    }

    fn cluster_trust_bundle<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<ClusterTrustBundle>> {
        let bundle = json!({"spec": {"trustBundle": "pem"}});
        self.object("clustertrustbundle", "", name, bundle)
    }

    fn cluster_trust_bundles_of<'a>(
        &'a self,
        signer_name: &'a str,
    ) -> Answer<'a, Vec<Arc<ClusterTrustBundle>>> {
        self.answer("clustertrustbundle", signer_name, || {
            let metadata =
                json!({"namespace": "", "name": "example.com:ca:1", "resourceVersion": "1"});
            let bundle = json!({"metadata": metadata, "spec": {"trustBundle": "pem"}});
            vec![serde_json::from_value(bundle).map(Arc::new).unwrap()]
        })
    }

    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        let service = |namespace: &str, name: &str| {
            let metadata = json!({"namespace": namespace, "name": name, "resourceVersion": "1"});
            Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        self.answer("service", "", || {
            vec![
                service("default", "kubernetes"),
                service("default", "other"),
                service("shop", "db"),
                service("elsewhere", "db"),
            ]
        })
    }
}

struct Setup {
    dir: tempfile::TempDir,
    server: Arc<Server>,
}

impl Setup {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            server: Arc::default(),
        }
    }

    /// Starts a kubelet, with a key or without.
    async fn start(&self, has_key: bool) -> (Arc<Checkpoint>, CheckpointedObjects) {
        let key = self.dir.path().join("key");
        fs::write(&key, [7; 32]).unwrap();
        let options = CheckpointOptions {
            dir: self.dir.path().join("c"),
            key_file: has_key.then_some(key),
        };
        let checkpoint = Arc::new(Checkpoint::open(&options, "node").await.unwrap());
        let server = Arc::clone(&self.server);
        let asked = Arc::clone(&server);
        let is_away = move || {
            matches!(
                *asked.0.lock(),
                ServerBehavior::Away | ServerBehavior::Silent
            )
        };
        let objects = CheckpointedObjects::new(server, Arc::clone(&checkpoint), is_away);
        (checkpoint, objects)
    }

    fn set_behavior(&self, behavior: ServerBehavior) {
        *self.server.0.lock() = behavior;
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("c").join(path)
    }
}

/// Executes all pending writes and removals.
async fn flush(checkpoint: &Checkpoint) {
    let cancel = CancellationToken::new();
    cancel.cancel();
    checkpoint.run(cancel).await;
}

fn pod() -> Arc<Pod> {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "web-uid"},
        "spec": {"runtimeClassName": "gvisor", "containers": [], "volumes": [
            {"name": "a", "configMap": {"name": "settings"}},
            {"name": "b", "secret": {"secretName": "login"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "projected": {"sources": [
                {"clusterTrustBundle": {"path": "a", "name": "example.com:ca:1"}},
                {"clusterTrustBundle": {"path": "b", "signerName": "example.com/ca"}}
            ]}}
        ]}
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn request() -> TokenRequestSpec {
    TokenRequestSpec {
        expiration_seconds: Some(3600),
        bound_object_ref: Some(BoundObjectReference {
            uid: Some("web-uid".to_owned()),
            ..BoundObjectReference::default()
        }),
        ..TokenRequestSpec::default()
    }
}

/// Requests every object that the pod needs.
async fn ask(objects: &CheckpointedObjects) {
    objects.config_map("shop", "settings").await.unwrap();
    objects.secret("shop", "login").await.unwrap();
    let claim = objects.persistent_volume_claim("shop", "data").await;
    claim.unwrap();
    objects.persistent_volume("pv").await.unwrap();
    let class = objects.runtime_class("gvisor").await.unwrap();
    assert_eq!(class.handler, "runsc");
    let bundle = objects.cluster_trust_bundle("example.com:ca:1").await;
    let bundles = objects.cluster_trust_bundles_of("example.com/ca").await;
    assert_eq!(bundles.unwrap(), [bundle.unwrap()]);
    objects.services_for("shop").await.unwrap();
    let token = objects.service_account_token("shop", "default", request());
    assert_eq!(token.await.unwrap().token.as_deref(), Some("token"));
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_needs_is_had_while_the_server_is_away() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(true).await;
    checkpoint.set_pods(&[pod()]);
    ask(&objects).await;
    objects.config_map("shop", "unnamed").await.unwrap();
    flush(&checkpoint).await;

    let (checkpoint, objects) = setup.start(true).await;
    assert_eq!(checkpoint.restored(), [pod()]);
    for behavior in [ServerBehavior::Away, ServerBehavior::Silent] {
        setup.set_behavior(behavior);
        ask(&objects).await;
        let services = objects.services_for("shop").await.unwrap();
        let names = services.iter().map(|s| s.metadata.name.clone().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["kubernetes", "db"]);
        let error = objects.config_map("shop", "unnamed").await.unwrap_err();
        assert!(error.is_away(), "{error}");
    }
    assert!(!setup.path("configmaps/shop/unnamed").exists());
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_is_not_had_from_disk() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(true).await;
    checkpoint.set_pods(&[pod()]);
    ask(&objects).await;
    flush(&checkpoint).await;
    setup.set_behavior(ServerBehavior::Refuses);
    let error = objects.secret("shop", "login").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read secret \"login\": because");
    setup.set_behavior(ServerBehavior::NotFound);
    let error = objects.config_map("shop", "settings").await.unwrap_err();
    assert!(error.is_not_found());
    flush(&checkpoint).await;
    assert!(!setup.path("configmaps/shop/settings").exists());
    assert!(setup.path("secrets/shop/login").exists());

    checkpoint.remove_pod(&pod());
    flush(&checkpoint).await;
    for kind in EntryKind::ALL {
        let dir = setup.path(kind.directory());
        let left = fs::read_dir(&dir).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{}", dir.display());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_slow_server_is_about_to_say_is_waited_for() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(true).await;
    checkpoint.set_pods(&[pod()]);
    ask(&objects).await;
    flush(&checkpoint).await;
    let (checkpoint, objects) = setup.start(true).await;
    setup.set_behavior(ServerBehavior::Slow);
    objects.secret("shop", "login").await.unwrap();
    checkpoint.set_pods(&[pod()]);
    let error = objects.secret("shop", "login").await.unwrap_err();
    assert!(matches!(error, ObjectError::NotSynced { .. }), "{error}");
    // The checkpoint is used if the server is unreachable.
    setup.set_behavior(ServerBehavior::Away);
    objects.secret("shop", "login").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_is_written_later() {
    let setup = Setup::new();
    let (checkpoint, _) = setup.start(false).await;
    let blocked = setup.path("pods");
    fs::write(&blocked, "").unwrap();
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (checkpoint, cancel) = (Arc::clone(&checkpoint), cancel.clone());
        async move { checkpoint.run(cancel).await }
    });
    checkpoint.set_pods(&[pod()]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    fs::remove_file(&blocked).unwrap();
    assert!(!setup.path("pods/shop/web").exists());
    // The pod does not change in the meantime.
    tokio::time::sleep(RETRY_MAX + RETRY_BASE).await;
    assert!(setup.path("pods/shop/web").exists());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_restored_is_no_version_of_the_servers() {
    let setup = Setup::new();
    let (checkpoint, _) = setup.start(false).await;
    let mut told = Pod::clone(&pod());
    told.metadata.resource_version = Some("7".to_owned());
    checkpoint.set_pods(&[Arc::new(told)]);
    flush(&checkpoint).await;
    let (checkpoint, _) = setup.start(false).await;
    assert_eq!(checkpoint.restored(), [pod()]);
}

#[tokio::test(start_paused = true)]
async fn without_a_key_nothing_secret_is_on_disk() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(false).await;
    checkpoint.set_pods(&[pod()]);
    ask(&objects).await;
    flush(&checkpoint).await;
    assert!(!setup.path("secrets").exists() && !setup.path("tokens").exists());
    setup.set_behavior(ServerBehavior::Away);
    objects.config_map("shop", "settings").await.unwrap();
    let secret = objects.secret("shop", "login").await.unwrap_err();
    let token = objects.service_account_token("shop", "default", request());
    for error in [secret, token.await.unwrap_err()] {
        let error = error.to_string();
        assert!(
            error.contains("because; the checkpoint has secrets and tokens only with"),
            "{error}"
        );
        assert!(error.contains("--bootstrap-checkpoint-key"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_object_is_told_by_its_file() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(false).await;
    checkpoint.set_pods(&[pod()]);
    ask(&objects).await;
    flush(&checkpoint).await;
    let path = setup.path("configmaps/shop/settings");
    fs::write(&path, "nothing").unwrap();
    let (_, objects) = setup.start(false).await;
    setup.set_behavior(ServerBehavior::Away);
    let error = objects.config_map("shop", "settings").await.unwrap_err();
    let error = error.to_string();
    let corrupt = format!("because; {} is corrupt", path.display());
    assert!(error.contains(&corrupt), "{error}");
    objects.persistent_volume("pv").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn labels_of_the_node_are_had_or_waited_for() {
    let setup = Setup::new();
    let (checkpoint, objects) = setup.start(false).await;
    let mut choosy = Pod::clone(&pod());
    let selector = [("disk".to_owned(), "fast".to_owned())];
    choosy.spec.get_or_insert_default().node_selector = Some(selector.into());
    checkpoint.set_pods(&[Arc::new(choosy)]);
    flush(&checkpoint).await;
    assert_eq!(objects.node().await, Ok(None));
    let (checkpoint, _) = setup.start(false).await;
    assert!(checkpoint.restored().is_empty());

    let node = json!({
        "metadata": {"name": "node", "labels": {"disk": "fast"}, "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "2"}, "volumesAttached": [{"name": "v", "devicePath": ""}]}
    });
    let node = Arc::new(serde_json::from_value(node).unwrap());
    let cancel = CancellationToken::new();
    cancel.cancel();
    let (_sender, receiver) = watch::channel(Some(node));
    checkpoint.follow_node(receiver, cancel).await;
    flush(&checkpoint).await;
    let (checkpoint, objects) = setup.start(false).await;
    assert_eq!(checkpoint.restored().len(), 1);
    let node = objects.node().await.unwrap().unwrap();
    assert_eq!(node.metadata.labels.as_ref().unwrap()["disk"], "fast");
    assert_eq!(node.status.as_ref().unwrap().volumes_attached, None);
}

#[tokio::test(start_paused = true)]
async fn a_directory_of_no_use_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let options = CheckpointOptions {
        dir: file.clone(),
        key_file: None,
    };
    let error = Checkpoint::open(&options, "node").await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("--bootstrap-checkpoint-path"), "{error}");
    assert!(error.contains(&file.display().to_string()), "{error}");
}
