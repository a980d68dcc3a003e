mod drivers;

use std::{path::Path, sync::Arc, time::Duration};

use cri_proto::{
    dra::v1::{Device, NodePrepareResourceResponse},
    dra_health::v1alpha1::HealthStatus,
};
use fake_dra_driver::{Call, FakeDraDriver, Serving};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kubelet_api_client::objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
use kubelet_metrics::{Collector as _, Exposition};
use kubelet_plugin_manager::{Plugin, PluginHandler as _};
use kubelet_pod_spec::identity::PodUid;
use serde_json::{Value, json};
use test_api_server::by_path::{ByPath, Health as ServerHealth};
use tokio::{sync::watch, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use crate::{ClusterNode, DraManager, DraParts, Health};

const DRIVER: &str = "gpu.example";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const SECOND: Duration = Duration::from_secs(1);

/// A node with an API server, whose kubelet can be started again.
struct Setup {
    server: ByPath,
    dir: tempfile::TempDir,
    node: watch::Sender<Option<Arc<Node>>>,
    manager: DraManager,
    cancel: CancellationToken,
}

fn setup() -> Setup {
    let server = ByPath::new();
    let dir = tempfile::tempdir().unwrap();
    let node = watch::Sender::new(Some(Arc::default()));
    let (manager, cancel) = start(&server, dir.path(), &node);
    Setup {
        server,
        dir,
        node,
        manager,
        cancel,
    }
}

fn start(
    server: &ByPath,
    root_dir: &Path,
    node: &watch::Sender<Option<Arc<Node>>>,
) -> (DraManager, CancellationToken) {
    let cancel = CancellationToken::new();
    let objects = ApiObjects::new(ApiObjectsParts {
        client: server.client(),
        node: node.subscribe(),
        change_detection: ChangeDetection::Get,
        sync_frequency: SECOND,
        tasks: TaskTracker::new(),
        cancel: cancel.clone(),
    });
    let manager = DraManager::start(DraParts {
        root_dir: root_dir.to_owned(),
        objects: Arc::new(objects),
        cluster: Some(ClusterNode {
            client: server.client(),
            name: "node".to_owned(),
            object: node.subscribe(),
        }),
    });
    (manager, cancel)
}

impl Setup {
    /// Serves and registers a driver.
    async fn register(&self, driver: &FakeDraDriver) -> Serving {
        self.register_as(driver, DRIVER, "v1.DRAPlugin").await
    }

    async fn register_as(&self, driver: &FakeDraDriver, name: &str, version: &str) -> Serving {
        let serving = driver.serve(self.dir.path()).unwrap();
        let plugin = self.plugin(driver, name, version);
        self.manager.register(&plugin).await.unwrap();
        let is_connected = || self.manager.drivers().is_usable(name);
        until("the connection", is_connected).await;
        serving
    }

    fn plugin(&self, driver: &FakeDraDriver, name: &str, version: &str) -> Plugin {
        Plugin {
            name: name.to_owned(),
            endpoint: driver.endpoint(self.dir.path()),
            versions: vec![version.to_owned()],
        }
    }

    /// The same node after a restart of the kubelet.
    fn restart(&mut self) {
        self.cancel.cancel();
        (self.manager, self.cancel) = start(&self.server, self.dir.path(), &self.node);
    }

    fn put_claim(&self, name: &str, pods: &[&str]) {
        self.put(name, claim(name, pods));
    }

    fn put(&self, name: &str, mut claim: Value) {
        claim["metadata"]["name"] = json!(name);
        let status = claim["status"].take();
        self.server.put(CLAIMS, claim);
        self.server.put_status(CLAIMS, name, &status);
    }

    fn uid_of(&self, name: &str) -> String {
        let claim = self.server.object(CLAIMS, name).unwrap();
        claim["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The claim, as the driver records it.
    fn called(&self, name: &str) -> String {
        format!("ns/{name}/{}", self.uid_of(name))
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let prepared = self.manager.prepare(pod).await;
        prepared.map_err(|error| error.to_string())
    }

    async fn unprepare(&self, uid: &str) -> Result<(), String> {
        let done = self.manager.unprepare(&PodUid::from(uid)).await;
        done.map_err(|error| error.to_string())
    }

    async fn cdi(&self, pod: &Pod) -> Vec<String> {
        let devices = self.manager.cdi_devices(pod, container(pod)).await;
        devices.unwrap()
    }

    fn slices(&self) -> Vec<&'static str> {
        let all = ["gpu", "nic", "other-node"];
        let exists = |name: &&str| self.server.object(SLICES, name).is_some();
        all.into_iter().filter(exists).collect()
    }

    fn put_slices(&self) {
        for (name, node, driver) in [
            ("gpu", "node", DRIVER),
            ("nic", "node", "nic.example"),
            ("other-node", "other", DRIVER),
        ] {
            let spec = json!({"nodeName": node, "driver": driver});
            let slice = json!({"metadata": {"name": name}, "spec": spec});
            self.server.put(SLICES, slice);
        }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn claim(name: &str, pods: &[&str]) -> Value {
    let reserved = |uid: &&str| json!({"resource": "pods", "name": "p", "uid": uid});
    let reserved: Vec<Value> = pods.iter().map(reserved).collect();
    json!({
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "c"}}]}},
        "status": {
            "reservedFor": reserved,
            "allocation": {"devices": {"results": [
                {"request": "one", "driver": DRIVER, "pool": "pool", "device": name},
            ]}},
        },
    })
}

/// A pod whose container uses all devices of these claims.
fn pod(uid: &str, claims: &[&str]) -> Pod {
    let entry = |name: &&str| json!({"name": name, "resourceClaimName": name});
    let named = |name: &&str| json!({"name": name});
    pod_of(json!({
        "metadata": {"namespace": "ns", "name": "p", "uid": uid},
        "spec": {
            "resourceClaims": claims.iter().map(entry).collect::<Vec<_>>(),
            "containers": [{
                "name": "c",
                "resources": {"claims": claims.iter().map(named).collect::<Vec<_>>()},
            }],
        },
    }))
}

fn pod_of(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        sleep(SECOND / 10).await;
    }
    panic!("{what} did not come");
}

fn metrics(manager: &DraManager) -> String {
    let mut page = Exposition::of_about(0);
    manager.collect(&mut page);
    page.into_text()
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_prepared_for_its_first_pod_and_undone_after_the_last() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1", "u2"]);
    setup.put_claim("b", &["u1"]);
    let first = pod("u1", &["a", "b"]);
    setup.prepare(&first).await.unwrap();
    let both = vec![setup.called("a"), setup.called("b")];
    assert_eq!(driver.take_calls(), [Call::Prepare(both)]);
    let cdi = ["gpu.example/claim=a", "gpu.example/claim=b"];
    assert_eq!(setup.cdi(&first).await, cdi);
    // A second sandbox of the pod, and another pod.
    setup.prepare(&first).await.unwrap();
    let second = pod("u2", &["a"]);
    setup.prepare(&second).await.unwrap();
    assert_eq!(setup.cdi(&second).await, [cdi[0]]);
    assert_eq!(driver.take_calls(), []);
    let page = metrics(&setup.manager);
    for line in [
        "dra_resource_claims_in_use{driver_name=\"<any>\"} 2",
        "dra_resource_claims_in_use{driver_name=\"gpu.example\"} 2",
        "dra_operations_duration_seconds_count{operation_name=\"PrepareResources\",is_error=\"false\"} 3",
        "method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\",grpc_status_code=\"OK\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }

    setup.unprepare("u1").await.unwrap();
    let of_b = vec![setup.called("b")];
    assert_eq!(driver.take_calls(), [Call::Unprepare(of_b)]);
    setup.unprepare("u2").await.unwrap();
    let of_a = vec![setup.called("a")];
    assert_eq!(driver.take_calls(), [Call::Unprepare(of_a)]);
    setup.unprepare("u2").await.unwrap();
    assert_eq!(driver.take_calls(), []);
    let page = metrics(&setup.manager);
    assert!(page.contains("driver_name=\"<any>\"} 0"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_only_use_claims_that_are_its_own() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let of_template = || {
        pod_of(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u1"},
            "spec": {
                "resourceClaims": [
                    {"name": "made", "resourceClaimTemplateName": "t"},
                    {"name": "not-needed", "resourceClaimTemplateName": "t"},
                ],
                "containers": [{"name": "c", "resources": {"claims": [{"name": "made"}]}}],
            },
        }))
    };
    let mut made = of_template();
    let error = setup.prepare(&made).await.unwrap_err();
    assert_eq!(error, "pod \"ns/p\": ResourceClaim not created yet");
    made.status = serde_json::from_value(json!({"resourceClaimStatuses": [
        {"name": "made", "resourceClaimName": "p-made-x"}, {"name": "not-needed"},
    ]}))
    .unwrap();
    let error = setup.prepare(&made).await.unwrap_err();
    let missing =
        "fetch ResourceClaim p-made-x: resourceclaim.resource.k8s.io \"p-made-x\" not found";
    assert_eq!(error, missing);
    setup.put_claim("p-made-x", &["u1"]);
    let error = setup.prepare(&made).await.unwrap_err();
    assert_eq!(
        error,
        "ResourceClaim ns/p-made-x was not created for Pod ns/p (Pod is not owner)"
    );
    let mut own = claim("p-made-x", &["u1"]);
    own["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true},
    ]);
    setup.put("p-made-x", own);
    let error = setup.prepare(&made).await.unwrap_err();
    assert_eq!(error, "DRA driver gpu.example is not registered");
    let _serving = setup.register(&driver).await;
    setup.prepare(&made).await.unwrap();
    assert_eq!(setup.cdi(&made).await, ["gpu.example/claim=p-made-x"]);

    setup.put_claim("others", &["u2"]);
    let error = setup.prepare(&pod("u1", &["others"])).await.unwrap_err();
    let uid = setup.uid_of("others");
    let expected = format!("pod p (u1) is not allowed to use ResourceClaim others ({uid})");
    assert_eq!(error, expected);
    let mut free = claim("free", &["u1"]);
    free["status"]["allocation"].take();
    setup.put("free", free);
    let error = setup.prepare(&pod("u1", &["free"])).await.unwrap_err();
    assert_eq!(error, "ResourceClaim free: not allocated");
    let mut neither = pod("u1", &["free"]);
    neither
        .spec
        .as_mut()
        .unwrap()
        .resource_claims
        .as_mut()
        .unwrap()[0]
        .resource_claim_name = None;
    let error = setup.prepare(&neither).await.unwrap_err();
    assert!(
        error.ends_with("none of the supported fields are set"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_has_the_devices_of_the_requests_that_it_names() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1"]);
    let device = |name: &str, requests: &[&str]| Device {
        request_names: requests.iter().map(|&it| it.to_owned()).collect(),
        pool_name: "pool".to_owned(),
        device_name: name.to_owned(),
        cdi_device_ids: vec![format!("x.y/c={name}")],
        share_id: Some("s".to_owned()),
    };
    let devices = vec![
        device("0", &["one"]),
        device("1", &["two/small"]),
        device("all", &[]),
    ];
    let answer = NodePrepareResourceResponse {
        devices,
        error: String::new(),
    };
    driver.set_answer("a", answer);
    let mut pod = pod("u1", &["a"]);
    setup.prepare(&pod).await.unwrap();
    for (request, expected) in [
        (
            json!([{"name": "a"}]),
            vec!["x.y/c=0", "x.y/c=1", "x.y/c=all"],
        ),
        (
            json!([{"name": "a", "request": "one"}]),
            vec!["x.y/c=0", "x.y/c=all"],
        ),
        (
            json!([{"name": "a", "request": "two"}]),
            vec!["x.y/c=1", "x.y/c=all"],
        ),
        (json!([]), vec![]),
    ] {
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        let resources = json!({"claims": request});
        containers[0].resources = serde_json::from_value(resources).unwrap();
        assert_eq!(setup.cdi(&pod).await, expected, "{request}");
    }

    // An extended resource that a claim gives.
    let resources = json!({"requests": {"vendor.example/gpu": "1"}});
    pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
    pod.status = serde_json::from_value(json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "a",
        "requestMappings": [
            {"containerName": "c", "resourceName": "vendor.example/gpu", "requestName": "one"},
            {"containerName": "other", "resourceName": "vendor.example/gpu", "requestName": "two"},
        ],
    }}))
    .unwrap();
    assert_eq!(setup.cdi(&pod).await, ["x.y/c=0", "x.y/c=all"]);
}

#[tokio::test(start_paused = true)]
async fn claims_outlive_the_kubelet_and_an_absent_api_server() {
    let mut setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1"]);
    setup.put_claim("b", &["u2"]);
    let first = pod("u1", &["a"]);
    setup.prepare(&first).await.unwrap();
    driver.take_calls();

    setup.restart();
    // Containers start again without the driver.
    assert_eq!(setup.cdi(&first).await, ["gpu.example/claim=a"]);
    drop(serving);
    let _serving = setup.register(&driver).await;
    setup.server.set_health(ServerHealth::Down);
    // A new sandbox, as after a reboot.
    setup.prepare(&first).await.unwrap();
    assert_eq!(
        driver.take_calls(),
        [Call::Prepare(vec![called(&setup, "a")])]
    );
    let error = setup.prepare(&pod("u2", &["b"])).await.unwrap_err();
    assert!(error.starts_with("fetch ResourceClaim b: "), "{error}");
    setup.server.set_health(ServerHealth::Up);

    // Another claim with the same name.
    setup.server.remove(CLAIMS, "a");
    setup.put_claim("a", &["u3"]);
    let error = setup.prepare(&pod("u3", &["a"])).await.unwrap_err();
    assert!(
        error.contains("old ResourceClaim with same name a"),
        "{error}"
    );
    setup.unprepare("u1").await.unwrap();
    setup.prepare(&pod("u3", &["a"])).await.unwrap();

    // A damaged file is kept, and a container that starts has its claims prepared again.
    driver.take_calls();
    let file = setup.dir.path().join("dra_manager_state");
    std::fs::write(&file, "{").unwrap();
    setup.restart();
    assert!(file.with_extension("damaged").exists());
    let plugin = setup.plugin(&driver, DRIVER, "v1.DRAPlugin");
    setup.manager.register(&plugin).await.unwrap();
    let third = pod("u3", &["a"]);
    assert_eq!(setup.cdi(&third).await, ["gpu.example/claim=a"]);
    assert_eq!(driver.take_calls().len(), 1);
}

fn called(setup: &Setup, name: &str) -> String {
    setup.called(name)
}

#[tokio::test(start_paused = true)]
async fn claims_of_pods_that_are_gone_are_released() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1", "u2"]);
    setup.put_claim("b", &["u2"]);
    setup.prepare(&pod("u1", &["a"])).await.unwrap();
    setup.prepare(&pod("u2", &["a", "b"])).await.unwrap();
    driver.take_calls();
    let (manager, cancel) = (setup.manager.clone(), setup.cancel.clone());
    tokio::spawn(async move {
        let gone = |mut pods: std::collections::BTreeSet<PodUid>| {
            pods.retain(|uid| uid.as_str() == "u2");
            pods
        };
        manager.run(gone, cancel).await;
    });
    sleep(61 * SECOND).await;
    let of_b = vec![setup.called("b")];
    until("the release", || {
        setup
            .manager
            .claims_of(&pod("u2", &["b"]), container(&pod("u2", &["b"])))
            .is_empty()
    })
    .await;
    assert_eq!(driver.take_calls(), [Call::Unprepare(of_b)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_state_file_only_pods_with_claims_wait() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1"]);
    let file = setup.dir.path().join("dra_manager_state");
    std::fs::create_dir_all(file.join("in-the-way")).unwrap();
    let error = setup.prepare(&pod("u1", &["a"])).await.unwrap_err();
    assert!(
        error.starts_with("checkpoint ResourceClaim state: "),
        "{error}"
    );
    assert_eq!(driver.take_calls(), []);
    setup.prepare(&pod("u2", &[])).await.unwrap();
    setup.unprepare("u2").await.unwrap();
    std::fs::remove_dir_all(&file).unwrap();
    setup.prepare(&pod("u1", &["a"])).await.unwrap();
    assert!(file.is_file());
}
