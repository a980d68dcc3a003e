use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use test_api_server::by_path::{ByPath, Health};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;

const CONFIG_MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
const SERVICES: &str = "/api/v1/services";
const ACCOUNTS: &str = "/api/v1/namespaces/ns/serviceaccounts";
const MINUTE: Duration = Duration::from_secs(60);
const UNSYNCED: &str = "failed to sync configmap cache: timed out waiting for the condition";

/// The objects of a server, and their surroundings.
struct Setup {
    server: ByPath,
    objects: ApiObjects,
    node: watch::Sender<Option<Arc<Node>>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

fn setup(change_detection: ChangeDetection) -> Setup {
    let server = ByPath::new();
    let node = watch::Sender::new(None);
    let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
    let objects = ApiObjects::new(ApiObjectsParts {
        client: server.client(),
        node: node.subscribe(),
        change_detection,
        sync_frequency: MINUTE,
        tasks: tasks.clone(),
        cancel: cancel.clone(),
    });
    Setup {
        server,
        objects,
        node,
        tasks,
        cancel,
    }
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name}, "data": {"key": value}})
}

impl Setup {
    /// The value in a config map, or the error.
    async fn value(&self, name: &str) -> Result<String, String> {
        let config_map = self.objects.config_map("ns", name).await;
        let config_map = config_map.map_err(|error| error.to_string())?;
        assert_eq!(config_map.metadata.managed_fields, None);
        Ok(config_map.data.as_ref().unwrap()["key"].clone())
    }

    /// The number of requests of this kind.
    fn count(&self, request: &str) -> usize {
        let requests = self.server.requests();
        requests.iter().filter(|one| *one == request).count()
    }

    /// The numbers of lists and watches of config maps.
    fn asked(&self) -> (usize, usize) {
        let count = |verb: &str| self.count(&format!("{verb} {CONFIG_MAPS}"));
        (count("GET"), count("WATCH"))
    }

    /// The number of watches besides that of services.
    fn watches(&self) -> usize {
        self.server.watches() - 1
    }

    /// Lets all pending work finish.
    async fn settle(&self) {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_node_alone_says_what_it_lacks() {
    let error = NoObjects.secret("default", "key").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read secret \"key\": this node has no API server"
    );
    assert!(!error.is_not_found());
    assert_eq!(NoObjects.services().await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn all_who_ask_share_one_watch_that_sees_changes() {
    let setup = setup(ChangeDetection::Watch);
    setup.server.put(CONFIG_MAPS, config_map("a", "1"));
    setup.server.put(CONFIG_MAPS, config_map("b", "2"));
    let both = futures::join!(setup.value("a"), setup.value("a"));
    assert_eq!(both, (Ok("1".to_owned()), Ok("1".to_owned())));
    for _ in 0..10 {
        assert_eq!(setup.value("a").await.unwrap(), "1");
        sleep(MINUTE).await;
    }
    assert_eq!(setup.asked(), (1, 1));
    setup.server.put(CONFIG_MAPS, config_map("a", "3"));
    setup.settle().await;
    assert_eq!(setup.value("a").await.unwrap(), "3");
    assert_eq!(setup.value("b").await.unwrap(), "2");
    setup.settle().await;
    assert_eq!((setup.asked(), setup.watches()), ((2, 2), 2));
    setup.server.remove(CONFIG_MAPS, "a");
    setup.settle().await;
    assert_eq!(
        setup.value("a").await.unwrap_err(),
        "configmap \"a\" not found"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_seen_when_it_comes() {
    let setup = setup(ChangeDetection::Watch);
    let before = Instant::now();
    let error = setup.objects.secret("ns", "s").await.unwrap_err();
    assert_eq!(error, ObjectError::not_found("secret", "s"));
    assert!(before.elapsed() < Duration::from_millis(100));
    setup.server.put(
        SECRETS,
        json!({"metadata": {"name": "s"}, "data": {"key": "dmFsdWU="}}),
    );
    setup.settle().await;
    let secret = setup.objects.secret("ns", "s").await.unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["key"].0, b"value");
    // Objects cannot have these names, and no request is made.
    for name in ["", "..", "a/b", "a,metadata.name=b"] {
        let error = setup.objects.secret("ns", name).await.unwrap_err();
        assert!(error.is_not_found(), "{error}");
        let error = setup.objects.persistent_volume_claim("ns", name).await;
        assert!(error.unwrap_err().is_not_found());
    }
    assert_eq!(setup.count(&format!("GET {SECRETS}")), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_known_stays_known_while_the_server_is_away() {
    let setup = setup(ChangeDetection::Watch);
    setup.server.put(CONFIG_MAPS, config_map("a", "1"));
    assert_eq!(setup.value("a").await.unwrap(), "1");
    setup.server.set_health(Health::Down);
    for _ in 0..20 {
        sleep(MINUTE).await;
        assert_eq!(setup.value("a").await.unwrap(), "1");
    }
    assert_eq!(setup.value("other").await.unwrap_err(), UNSYNCED);
    setup.server.put(CONFIG_MAPS, config_map("a", "2"));
    setup.server.set_health(Health::Up);
    sleep(2 * MINUTE).await;
    assert_eq!(setup.value("a").await.unwrap(), "2");
    assert_eq!(
        setup.value("other").await.unwrap_err(),
        "configmap \"other\" not found"
    );
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asks_for_is_not_watched_on() {
    let setup = setup(ChangeDetection::Watch);
    setup.server.put(CONFIG_MAPS, config_map("a", "1"));
    assert_eq!(setup.value("a").await.unwrap(), "1");
    setup.value("gone").await.unwrap_err();
    setup.settle().await;
    assert_eq!(setup.watches(), 2);
    sleep(4 * MINUTE).await;
    assert_eq!(setup.value("a").await.unwrap(), "1");
    sleep(2 * MINUTE).await;
    assert_eq!(setup.watches(), 1);
    sleep(4 * MINUTE).await;
    assert_eq!((setup.watches(), setup.tasks.len()), (0, 1));
    setup.server.put(CONFIG_MAPS, config_map("a", "2"));
    assert_eq!(setup.value("a").await.unwrap(), "2");
    setup.settle().await;
    assert_eq!(setup.asked(), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn what_is_immutable_is_not_watched_on() {
    let setup = setup(ChangeDetection::Watch);
    let mut immutable = config_map("a", "1");
    immutable["immutable"] = json!(true);
    setup.server.put(CONFIG_MAPS, immutable);
    for _ in 0..100 {
        assert_eq!(setup.value("a").await.unwrap(), "1");
        sleep(MINUTE).await;
    }
    assert_eq!((setup.asked(), setup.watches()), ((1, 0), 0));
    sleep(5 * MINUTE).await;
    assert_eq!(setup.tasks.len(), 1);

    setup.server.put(CONFIG_MAPS, config_map("b", "1"));
    assert_eq!(setup.value("b").await.unwrap(), "1");
    let mut immutable = config_map("b", "2");
    immutable["immutable"] = json!(true);
    setup.server.put(CONFIG_MAPS, immutable);
    setup.settle().await;
    assert_eq!(setup.value("b").await.unwrap(), "2");
    assert_eq!(setup.watches(), 0);
}

/// A pod that refers to the config map and the secret `a`.
fn pod_of_both() -> Pod {
    let pod = json!({
        "metadata": {"namespace": "ns", "name": "p"},
        "spec": {"containers": [], "volumes": [
            {"name": "c", "configMap": {"name": "a"}}, {"name": "s", "secret": {"secretName": "a"}}
        ]}
    });
    serde_json::from_value(pod).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_gets_what_was_made_again_under_the_name_of_an_immutable_object() {
    let setup = setup(ChangeDetection::Watch);
    let immutable = |value: &str| {
        let mut object = config_map("a", value);
        object["immutable"] = json!(true);
        object
    };
    let secret = |value: &str| {
        let metadata = json!({"namespace": "ns", "name": "a"});
        json!({"metadata": metadata, "immutable": true, "data": {"key": value}})
    };
    let secret_value = || async {
        let secret = setup.objects.secret("ns", "a").await.unwrap();
        secret.data.as_ref().unwrap()["key"].0.clone()
    };
    setup.server.put(CONFIG_MAPS, immutable("1"));
    setup.server.put(SECRETS, secret("MQ=="));
    setup.objects.begin(&pod_of_both());
    assert_eq!(setup.value("a").await.unwrap(), "1");
    assert_eq!(secret_value().await, b"1");
    setup.server.remove(CONFIG_MAPS, "a");
    setup.server.remove(SECRETS, "a");
    setup.server.put(CONFIG_MAPS, immutable("2"));
    setup.server.put(SECRETS, secret("Mg=="));
    setup.settle().await;
    assert_eq!(setup.value("a").await.unwrap(), "1");
    setup.objects.begin(&pod_of_both());
    assert_eq!(setup.value("a").await.unwrap(), "2");
    assert_eq!(secret_value().await, b"2");
    // Neither is watched on.
    setup.settle().await;
    assert_eq!((setup.asked(), setup.watches()), ((2, 0), 0));

    setup.server.remove(CONFIG_MAPS, "a");
    setup.server.set_health(Health::Down);
    setup.objects.begin(&pod_of_both());
    let before = Instant::now();
    assert_eq!(setup.value("a").await.unwrap(), "2");
    assert_eq!(before.elapsed().as_secs(), 1);
    setup.server.set_health(Health::Up);
    sleep(MINUTE).await;
    assert_eq!(
        setup.value("a").await.unwrap_err(),
        "configmap \"a\" not found"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_to_ask_does_not_wait_for_long() {
    for health in [Health::Hung, Health::Down, Health::Forbidding] {
        let setup = setup(ChangeDetection::Watch);
        setup.server.put(CONFIG_MAPS, config_map("a", "1"));
        setup.server.set_health(health);
        let before = Instant::now();
        let why = match health {
            Health::Forbidding => "cannot read configmap \"a\": not for this node",
            _ => UNSYNCED,
        };
        assert_eq!(setup.value("a").await.unwrap_err(), why);
        assert_eq!(before.elapsed().as_secs(), 1);
        let error = setup.objects.services().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "services have not yet been read at least once, cannot construct envvars"
        );
        // After a rejection and then an outage, the object is no longer known to be forbidden.
        setup.server.set_health(Health::Down);
        sleep(MINUTE).await;
        assert_eq!(setup.value("a").await.unwrap_err(), UNSYNCED);
        // By now the API server may know that the pod is bound to this node.
        setup.server.set_health(Health::Up);
        sleep(MINUTE).await;
        assert_eq!(setup.value("a").await.unwrap(), "1", "{health:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn everything_ends_with_the_kubelet() {
    let setup = setup(ChangeDetection::Watch);
    setup.server.put(CONFIG_MAPS, config_map("a", "1"));
    setup.value("a").await.unwrap();
    setup.cancel.cancel();
    setup.tasks.close();
    setup.tasks.wait().await;
    assert_eq!(setup.server.watches(), 0);
    assert_eq!(setup.value("a").await.unwrap(), "1");
    assert_eq!(setup.value("b").await.unwrap_err(), UNSYNCED);
    assert!(setup.tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn services_are_followed_from_the_start() {
    let setup = setup(ChangeDetection::Watch);
    let service = |namespace: &str, name: &str| {
        let metadata = json!({"namespace": namespace, "name": name, "annotations": {"a": "b"}});
        json!({"metadata": metadata, "spec": {"clusterIP": "10.0.0.1"}})
    };
    setup.server.put(SERVICES, service("b", "x"));
    let names = || async {
        let services = setup.objects.services().await.unwrap();
        let name = |service: &Arc<Service>| {
            let metadata = &service.metadata;
            format!(
                "{}/{}",
                metadata.namespace.as_ref().unwrap(),
                metadata.name.as_ref().unwrap()
            )
        };
        services.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["b/x", "default/kubernetes"]);
    setup.server.put(SERVICES, service("a", "y"));
    setup.settle().await;
    assert_eq!(names().await, ["a/y", "b/x", "default/kubernetes"]);
    setup.server.set_health(Health::Down);
    sleep(MINUTE).await;
    assert_eq!(names().await, ["a/y", "b/x", "default/kubernetes"]);
}

#[tokio::test(start_paused = true)]
async fn without_watches_everything_is_read_when_it_is_asked_for() {
    let setup = setup(ChangeDetection::Get);
    setup.settle().await;
    assert_eq!(
        setup.value("a").await.unwrap_err(),
        "configmap \"a\" not found"
    );
    for value in ["1", "2"] {
        setup.server.put(CONFIG_MAPS, config_map("a", value));
        assert_eq!(setup.value("a").await.unwrap(), value);
    }
    assert_eq!(setup.watches(), 0);
    setup.server.set_health(Health::Forbidding);
    assert_eq!(
        setup.value("a").await.unwrap_err(),
        "cannot read configmap \"a\": not for this node"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_as_old_as_the_node_says() {
    let setup = setup(ChangeDetection::Cache);
    setup.server.put(CONFIG_MAPS, config_map("a", "1"));
    assert_eq!(setup.value("a").await.unwrap(), "1");
    setup.server.put(CONFIG_MAPS, config_map("a", "2"));
    sleep(MINUTE / 2).await;
    assert_eq!(setup.value("a").await.unwrap(), "1");
    sleep(MINUTE / 2).await;
    assert_eq!(setup.value("a").await.unwrap(), "2");
    // A new pod does not get an older one.
    setup.server.put(CONFIG_MAPS, config_map("a", "2.1"));
    setup.settle().await;
    setup.objects.begin(&pod_of_both());
    for _ in 0..2 {
        assert_eq!(setup.value("a").await.unwrap(), "2.1");
        setup.server.put(CONFIG_MAPS, config_map("a", "2.2"));
    }
    setup.settle().await;
    setup.server.set_health(Health::Down);
    setup.objects.begin(&pod_of_both());
    assert_eq!(setup.value("a").await.unwrap(), "2.1");
    setup.server.set_health(Health::Up);
    assert_eq!(setup.value("a").await.unwrap(), "2.2");
    let mut node = Node::default();
    let annotation = ("node.alpha.kubernetes.io/ttl".to_owned(), "15".to_owned());
    node.metadata.annotations = Some([annotation].into());
    setup.node.send_replace(Some(Arc::new(node)));
    setup.server.put(CONFIG_MAPS, config_map("a", "3"));
    sleep(MINUTE / 4).await;
    assert_eq!(setup.value("a").await.unwrap(), "3");
    setup.server.set_health(Health::Down);
    sleep(4 * MINUTE).await;
    assert_eq!(setup.value("a").await.unwrap(), "3");
    sleep(6 * MINUTE).await;
    let error = setup.value("a").await.unwrap_err();
    assert!(error.contains("cannot reach the API server"), "{error}");
    setup.server.set_health(Health::Up);
    setup.server.remove(CONFIG_MAPS, "a");
    assert_eq!(
        setup.value("a").await.unwrap_err(),
        "configmap \"a\" not found"
    );
}

#[tokio::test(start_paused = true)]
async fn other_objects_are_read_when_they_are_asked_for() {
    let setup = setup(ChangeDetection::Watch);
    let named = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    let claims = "/api/v1/namespaces/ns/persistentvolumeclaims";
    setup.server.put(claims, named("c"));
    setup.server.put("/api/v1/persistentvolumes", named("v"));
    setup
        .server
        .put(ACCOUNTS, json!({"metadata": {"name": "default"}}));
    let storage = "/apis/storage.k8s.io/v1";
    let mut attachment = named("csi-1");
    attachment["spec"] = json!({"attacher": "d", "nodeName": "n", "source": {}});
    setup
        .server
        .put(&format!("{storage}/volumeattachments"), attachment);
    setup
        .server
        .put(&format!("{storage}/csidrivers"), named("d.example.com"));
    let mut class = named("gvisor");
    class["handler"] = json!("runsc");
    setup
        .server
        .put("/apis/node.k8s.io/v1/runtimeclasses", class);
    let objects = &setup.objects;
    objects.persistent_volume_claim("ns", "c").await.unwrap();
    objects.persistent_volume("v").await.unwrap();
    objects.service_account("ns", "default").await.unwrap();
    objects.volume_attachment("csi-1").await.unwrap();
    for _ in 0..3 {
        objects.csi_driver("d.example.com").await.unwrap();
    }
    assert_eq!(setup.count(&format!("GET {storage}/csidrivers")), 1);
    let class = objects.runtime_class("gvisor").await.unwrap();
    assert_eq!(class.handler, "runsc");
    let error = objects.runtime_class("kata").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "runtimeclass.node.k8s.io \"kata\" not found"
    );
    let error = objects.persistent_volume("w").await.unwrap_err();
    assert_eq!(error.to_string(), "persistentvolume \"w\" not found");
    assert!(objects.csi_driver("e").await.unwrap_err().is_not_found());
    setup.server.set_health(Health::Forbidding);
    let error = objects.volume_attachment("csi-1").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read volumeattachment \"csi-1\": not for this node"
    );
    assert_eq!(objects.node().await, Ok(None));
    setup.node.send_replace(Some(Arc::default()));
    assert_eq!(objects.node().await, Ok(Some(Arc::default())));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_made_for_an_account() {
    let setup = setup(ChangeDetection::Watch);
    let request = |pod: Option<&str>| {
        let pod = pod.map(|name| json!({"kind": "Pod", "name": name}));
        let request = json!({"audiences": ["vault"], "boundObjectRef": pod});
        serde_json::from_value::<TokenRequestSpec>(request).unwrap()
    };
    let objects = &setup.objects;
    let error = objects.service_account_token("ns", "default", request(None));
    assert!(error.await.unwrap_err().is_not_found());
    setup
        .server
        .put(ACCOUNTS, json!({"metadata": {"name": "default"}}));
    let token = objects.service_account_token("ns", "default", request(None));
    let token = token.await.unwrap().token.unwrap();
    assert_eq!(token.split('.').count(), 3, "{token}");
    let error = objects.service_account_token("ns", "default", request(Some("p")));
    assert_eq!(
        error.await.unwrap_err().to_string(),
        "cannot read serviceaccount \"default\": pods \"p\" not found"
    );
}
