//! Pods of an API server on a node that reserves resources: what fits, and resizes.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images, node::Node};
use hyper::{Method, Request};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use test_api_server::Caller;

use super::{
    SOON, cgroup_of, container_id,
    limits::{Limits, limits, of_container},
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A cluster whose node has one CPU for pods.
struct Site {
    cluster: Cluster,
    admin: Client,
}

impl Site {
    async fn new(node: Node) -> Result<Self> {
        let cpus = thread::available_parallelism()?.get();
        let flags = [format!("--kube-reserved=cpu={}", cpus - 1)];
        let cluster = Cluster::with_flags(node, &flags).await?;
        let plane = &cluster.control_plane;
        let admin = plane.client(plane.kubeconfig(&Caller::admin())?).await?;
        Ok(Self { cluster, admin })
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let kind = match method {
            Method::PATCH => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(&method)
            .uri(path)
            .header("content-type", kind)
            .body(Body::from(body.to_string().into_bytes()))?;
        let (code, answer) = self
            .cluster
            .control_plane
            .send(&self.admin, request)
            .await?;
        ensure!(
            (200..300).contains(&code),
            "{method} {path}: {code}: {answer}"
        );
        Ok(answer)
    }

    /// Creates a pod; `spec` has its containers and their resources.
    async fn create(&self, name: &str, spec: &Value) -> Result<()> {
        let mut spec = spec.clone();
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = json!(images::BUSYBOX);
            container["command"] = json!(["sh", "-c", "exec sleep 1000"]);
        }
        spec["nodeName"] = json!("node");
        spec["hostNetwork"] = json!(true);
        spec["automountServiceAccountToken"] = json!(false);
        spec["terminationGracePeriodSeconds"] = json!(1);
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        self.send(Method::POST, PODS, &pod).await.map(drop)
    }

    async fn running(&self, name: &str) -> Result<Value> {
        let wanted = |pod: &Value| pod["status"]["phase"] == "Running";
        self.cluster.await_pod(name, SOON, wanted).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.send(Method::DELETE, &format!("{PODS}/{name}"), &json!({}))
            .await?;
        self.cluster.await_pod(name, SOON, Value::is_null).await?;
        Ok(())
    }

    /// The pod is rejected with a reason, and gets no cgroup.
    async fn is_rejected(&self, name: &str, resources: Value, reason: &str) -> Result<()> {
        self.create(name, &single(&resources)).await?;
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let pod = self.cluster.await_pod(name, SOON, failed).await?;
        let status = &pod["status"];
        ensure!(status["reason"] == reason, "{name}: {status}");
        let cgroup = cgroup_of(&pod)?;
        ensure!(
            !self.cluster.node.cgroups.has(&cgroup),
            "{name} has a cgroup"
        );
        self.delete(name).await
    }
}

fn single(resources: &Value) -> Value {
    json!({"containers": [{"name": "c", "resources": resources}]})
}

/// Requests and limits, in millicores and MiB.
fn sized(cpu: u64, memory: u64) -> Value {
    let amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
    json!({"requests": amounts, "limits": amounts})
}

/// The limits of a cgroup with these requests and limits.
fn amounts(cpu: u64, memory: u64) -> Limits {
    Limits {
        shares: cpu * 1024 / 1000,
        quota: Some(cpu * 100),
        memory: Some(memory << 20),
    }
}

pub(super) async fn run(node: Node) {
    let site = Site::new(node).await.unwrap();
    pods_fit_in_what_is_allocatable(&site).await.unwrap();
    a_resize_changes_both_cgroups(&site).await.unwrap();
    a_resize_of_the_whole_pod_changes_its_cgroup(&site)
        .await
        .unwrap();
}

async fn pods_fit_in_what_is_allocatable(site: &Site) -> Result<()> {
    let node = site.cluster.control_plane.get("/api/v1/nodes/node").await?;
    let allocatable = &node["status"]["allocatable"];
    ensure!(allocatable["cpu"] == "1", "{allocatable}");
    let all = limits(&site.cluster.node, "kubepods")?;
    let expected = Limits {
        shares: 1024,
        ..all
    };
    ensure!(
        all == expected.of_version(site.cluster.node.cgroups.is_v2()),
        "{all:?}"
    );
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    site.is_rejected("too-much-cpu", cpu("1100m"), "OutOfcpu")
        .await?;
    let memory = json!({"requests": {"memory": "900Ti"}});
    site.is_rejected("too-much-memory", memory, "OutOfmemory")
        .await?;
    site.create("fits", &single(&cpu("600m"))).await?;
    site.running("fits").await?;
    site.is_rejected("beside", cpu("500m"), "OutOfcpu").await?;
    site.delete("fits").await
}

/// Up and down: limits of CPU and memory of the first of two containers, and of the pod.
async fn a_resize_changes_both_cgroups(site: &Site) -> Result<()> {
    let spec = json!({"containers": [
        {"name": "c", "resources": sized(200, 48)},
        {"name": "other", "resources": sized(100, 32)},
    ]});
    site.create("sized", &spec).await?;
    let begun = site.running("sized").await?;
    let (cgroup, id) = (cgroup_of(&begun)?, container_id(&begun, "c")?);
    let node = &site.cluster.node;
    let is_v2 = node.cgroups.is_v2();
    for (cpu, memory) in [(200, 48), (300, 96), (100, 32), (250, 40), (150, 64)] {
        let patch = json!({"spec": {"containers": [
            {"name": "c", "resources": sized(cpu, memory)}
        ]}});
        let path = format!("{PODS}/sized/resize");
        site.send(Method::PATCH, &path, &patch).await?;
        let expected = [amounts(cpu, memory), amounts(cpu + 100, memory + 32)]
            .map(|limits| limits.of_version(is_v2));
        let found = || anyhow::Ok([of_container(node, &cgroup, id)?, limits(node, &cgroup)?]);
        let done = async |_: &Node| Ok(found()? == expected);
        let waited = node.await_until("the resize", SOON, done).await;
        waited.with_context(|| format!("{:?} instead of {expected:?}", found()))?;
    }
    let ended = site.running("sized").await?;
    ensure!(
        container_id(&ended, "c")? == id,
        "the container was restarted"
    );
    site.delete("sized").await
}

/// Pod-level resources, up and down.
async fn a_resize_of_the_whole_pod_changes_its_cgroup(site: &Site) -> Result<()> {
    let mut spec = single(&json!({}));
    spec["resources"] = sized(200, 64);
    site.create("whole", &spec).await?;
    let begun = site.running("whole").await?;
    let cgroup = cgroup_of(&begun)?;
    let node = &site.cluster.node;
    for (cpu, memory) in [(200, 64), (400, 96), (100, 48)] {
        let patch = json!({"spec": {"resources": sized(cpu, memory)}});
        let path = format!("{PODS}/whole/resize");
        site.send(Method::PATCH, &path, &patch).await?;
        let expected = amounts(cpu, memory).of_version(node.cgroups.is_v2());
        let found = || limits(node, &cgroup);
        let done = async |_: &Node| Ok(found()? == expected);
        let waited = node.await_until("the resize", SOON, done).await;
        waited.with_context(|| format!("{:?} instead of {expected:?}", found()))?;
    }
    site.delete("whole").await
}
