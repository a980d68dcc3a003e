use test_api_server::by_path::{ByPath, Health};

use super::*;

const NODES: &str = "/api/v1/nodes";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

struct Setup {
    server: ByPath,
    keeper: Arc<CsiNodeKeeper>,
    node: watch::Sender<Option<Arc<Node>>>,
}

impl Setup {
    /// A running keeper on a registered node.
    fn new() -> Self {
        let server = ByPath::new();
        let node = watch::Sender::new(None);
        let keeper = CsiNodeKeeper::new(server.client_of("n"), "n", node.subscribe());
        let setup = Self {
            server,
            keeper: Arc::new(keeper),
            node,
        };
        setup.register(json!({}));
        let keeper = Arc::clone(&setup.keeper);
        tokio::spawn(async move { keeper.run(CancellationToken::new()).await });
        setup
    }

    /// Creates or replaces the node, with `labels`.
    fn register(&self, labels: Value) {
        let node = json!({"metadata": {"name": "n", "labels": labels}});
        self.server.put(NODES, node);
        let node = self.server.object(NODES, "n").unwrap();
        let node = serde_json::from_value(node).unwrap();
        self.node.send_replace(Some(Arc::new(node)));
    }

    /// The owner reference to the node.
    fn owner(&self) -> Value {
        let uid = &self.server.object(NODES, "n").unwrap()["metadata"]["uid"];
        json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid})
    }

    /// The node's ids by driver, and its labels.
    fn node(&self) -> (Value, Value) {
        let node = self.server.object(NODES, "n").unwrap();
        let ids = node["metadata"]["annotations"][NODE_IDS].as_str();
        let ids = ids.map_or(Value::Null, |ids| serde_json::from_str(ids).unwrap());
        (ids, node["metadata"]["labels"].clone())
    }

    fn drivers(&self) -> Value {
        let csi_node = self.server.object(CSI_NODES, "n").unwrap();
        let drivers = csi_node["spec"]["drivers"].as_array();
        json!(drivers.cloned().unwrap_or_default())
    }

    async fn settle(&self) {
        sleep(Duration::from_secs(60)).await;
    }
}

fn driver(name: &str) -> DriverInfo {
    DriverInfo {
        name: name.to_owned(),
        node_id: "i-1".to_owned(),
        max_volumes: 0,
        topology: BTreeMap::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_cluster_knows_the_drivers_of_the_node() {
    let setup = Setup::new();
    let before = setup.keeper.problem();
    assert_eq!(before.as_deref(), Some("CSINode is not yet initialized"));
    setup.settle().await;
    assert_eq!(setup.keeper.problem(), None);
    let csi_node = setup.server.object(CSI_NODES, "n").unwrap();
    let owner = &csi_node["metadata"]["ownerReferences"][0];
    assert_eq!(*owner, setup.owner());
    let migrated = json!(in_tree::PLUGINS.join(","));
    assert_eq!(csi_node["metadata"]["annotations"][MIGRATED], migrated);

    let zoned = DriverInfo {
        max_volumes: 39,
        topology: [("example.com/zone".to_owned(), "a".to_owned())].into(),
        ..driver("zoned")
    };
    setup.keeper.install(&zoned).await.unwrap();
    setup.keeper.install(&driver("plain")).await.unwrap();
    let ids = json!({"plain": "i-1", "zoned": "i-1"});
    assert_eq!(setup.node(), (ids, json!({"example.com/zone": "a"})));
    let keys = json!(["example.com/zone"]);
    let known = json!([
        {"name": "zoned", "nodeID": "i-1", "topologyKeys": keys, "allocatable": {"count": 39}},
        {"name": "plain", "nodeID": "i-1"},
    ]);
    assert_eq!(setup.drivers(), known);

    // Known information is not published again.
    let requests = setup.server.requests().len();
    setup.keeper.install(&zoned).await.unwrap();
    let again = setup.server.requests().split_off(requests);
    assert!(
        again.iter().all(|request| request.starts_with("GET")),
        "{again:?}"
    );

    setup.keeper.uninstall("zoned");
    setup.settle().await;
    assert_eq!(setup.node().0, json!({"plain": "i-1"}));
    assert_eq!(setup.drivers(), json!([{"name": "plain", "nodeID": "i-1"}]));
    setup.keeper.uninstall("plain");
    setup.settle().await;
    assert_eq!(setup.node().0, Value::Null);
    assert_eq!(setup.drivers(), json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_says_what_cannot_be_is_not_taken() {
    let setup = Setup::new();
    setup.settle().await;
    setup.register(json!({"zone": "b"}));
    let mut elsewhere = driver("d");
    elsewhere.topology = [("zone".to_owned(), "a".to_owned())].into();
    let error = setup.keeper.install(&elsewhere).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "detected topology value collision: driver reported \"zone\":\"a\" but existing label \
         is \"zone\":\"b\""
    );
    let mut nameless = driver("d");
    nameless.node_id.clear();
    let error = setup.keeper.install(&nameless).await.unwrap_err();
    assert!(matches!(error, CsiNodeError::NoNodeId));
    assert_eq!(setup.node().0, Value::Null);
    assert_eq!(setup.drivers(), json!([]));
    let limits = [(-1, None), (1 << 40, Some(i32::MAX))];
    for (max_volumes, known) in limits {
        let driver = DriverInfo {
            max_volumes,
            ..driver("d")
        };
        assert_eq!(entry(&driver).allocatable.and_then(|a| a.count), known);
    }
}

#[tokio::test(start_paused = true)]
async fn the_object_of_an_earlier_node_is_replaced() {
    let server = ByPath::new();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "earlier"});
    let metadata = json!({"name": "n", "ownerReferences": [owner]});
    let drivers = json!([{"name": "old", "nodeID": "i-0"}]);
    server.put(
        CSI_NODES,
        json!({"metadata": metadata, "spec": {"drivers": drivers}}),
    );
    server.put(NODES, json!({"metadata": {"name": "n"}}));
    let node = server.object(NODES, "n").unwrap();
    let uid = node["metadata"]["uid"].clone();
    let node = watch::Sender::new(serde_json::from_value(node).ok().map(Arc::new));
    let keeper = CsiNodeKeeper::new(server.client_of("n"), "n", node.subscribe());
    keeper.install(&driver("d")).await.unwrap();
    let csi_node = server.object(CSI_NODES, "n").unwrap();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], uid);
    assert_eq!(
        csi_node["spec"]["drivers"],
        json!([{"name": "d", "nodeID": "i-1"}])
    );
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_is_told_later() {
    let setup = Setup::new();
    setup.server.set_health(Health::Down);
    setup.settle().await;
    let problem = setup.keeper.problem().unwrap();
    assert!(
        problem.starts_with("failed to initialize CSINode: "),
        "{problem}"
    );
    setup.keeper.install(&driver("d")).await.unwrap_err();
    setup.server.set_health(Health::Up);
    setup.settle().await;
    assert_eq!(setup.keeper.problem(), None);
    setup.keeper.install(&driver("d")).await.unwrap();

    setup.server.set_health(Health::Down);
    setup.keeper.uninstall("d");
    setup.settle().await;
    // The driver comes back before its withdrawal was published.
    setup.server.set_health(Health::Up);
    setup.keeper.install(&driver("d")).await.unwrap();
    setup.settle().await;
    assert_eq!(setup.drivers(), json!([{"name": "d", "nodeID": "i-1"}]));
    setup.server.set_health(Health::Down);
    setup.keeper.uninstall("d");
    setup.settle().await;
    setup.server.set_health(Health::Up);
    setup.settle().await;
    assert_eq!(setup.drivers(), json!([]));
}

#[tokio::test(start_paused = true)]
async fn the_list_of_an_earlier_kubelet_is_replaced() {
    let setup = Setup::new();
    let owner = setup.owner();
    let annotations = json!({"kept": "x", MIGRATED: "kubernetes.io/gce-pd"});
    let metadata = json!({
        "name": "n", "ownerReferences": [owner], "annotations": annotations
    });
    setup.server.put(
        CSI_NODES,
        json!({"metadata": metadata, "spec": {"drivers": []}}),
    );
    setup.settle().await;
    let csi_node = setup.server.object(CSI_NODES, "n").unwrap();
    let wanted = json!({"kept": "x", MIGRATED: in_tree::PLUGINS.join(",")});
    assert_eq!(csi_node["metadata"]["annotations"], wanted);
}
