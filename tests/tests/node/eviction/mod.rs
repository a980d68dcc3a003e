//! A node that runs out of memory or disk, on file systems and in cgroups of the test's own: which
//! pods are evicted, which images and containers are removed, and what stays.

mod container_collection;
mod disk;
mod full_disk;
mod image_collection;
mod local_storage;
mod memory;
mod mixed_load;
mod pids;
mod runtime_disk;
mod soft;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    cluster::Cluster,
    images,
    node::{Node, is_ready},
    small_disk::Disks,
};
use hyper::{Method, Request};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use test_api_server::Caller;
use tokio::sync::Mutex;

/// The time for one step, on a busy machine.
const SOON: Duration = Duration::from_secs(120);
const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const NODE: &str = "/api/v1/nodes/node";
/// Conditions end soon after their cause.
const TRANSITION: &str = "--eviction-pressure-transition-period=5s";

/// Held while a test takes memory or process IDs of the machine, which another would miss.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// A cluster of one node whose resources run out.
struct Site {
    cluster: Cluster,
    admin: Client,
}

impl Site {
    /// A node of the kind that a test runs on, whose kubelet has these flags.
    async fn new(node: Result<Node>, flags: &[String]) -> Result<Self> {
        let cluster = Cluster::with_flags(node?, flags).await?;
        let plane = &cluster.control_plane;
        let admin = plane.client(plane.kubeconfig(&Caller::admin())?).await?;
        Ok(Self { cluster, admin })
    }

    /// Creates a pod with one container `c` that runs a shell command.
    async fn create(&self, name: &str, command: &str, edit: impl FnOnce(&mut Value)) -> Result<()> {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": "node",
                "hostNetwork": true,
                "automountServiceAccountToken": false,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "c", "image": images::BUSYBOX,
                    "command": ["sh", "-c", format!("{command}; exec sleep 1000")],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        });
        edit(&mut pod["spec"]);
        let request = Request::builder()
            .method(Method::POST)
            .uri(PODS)
            .header("content-type", "application/json")
            .body(Body::from(pod.to_string().into_bytes()))?;
        let plane = &self.cluster.control_plane;
        let (code, answer) = plane.send(&self.admin, request).await?;
        ensure!(code == 201, "{name}: {code}: {answer}");
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let request = Request::delete(format!("{PODS}/{name}")).body(Body::empty())?;
        let plane = &self.cluster.control_plane;
        let (code, answer) = plane.send(&self.admin, request).await?;
        ensure!(code == 200, "{name}: {code}: {answer}");
        let gone = Value::is_null;
        self.cluster.await_pod(name, SOON, gone).await.map(drop)
    }

    async fn running(&self, name: &str) -> Result<()> {
        self.cluster.await_pod(name, SOON, is_ready).await.map(drop)
    }

    /// The pod runs, and its container was not restarted.
    async fn runs_on(&self, name: &str) -> Result<()> {
        let pod = self.cluster.pod(name).await?;
        let container = &pod["status"]["containerStatuses"][0];
        let log = || self.cluster.node.kubelet_log();
        ensure!(is_ready(&pod), "{name} does not run: {pod:#}\n{}", log());
        ensure!(container["restartCount"] == 0, "{name}: {container}");
        Ok(())
    }

    /// Waits until the pod is evicted. Returns the message of its status.
    async fn evicted(&self, name: &str) -> Result<String> {
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let pod = self.cluster.await_pod(name, SOON, failed).await?;
        let status = &pod["status"];
        ensure!(status["reason"] == "Evicted", "{name}: {status}");
        let message = status["message"].as_str().context("no message")?;
        Ok(message.to_owned())
    }

    /// Whether a pod has the condition of a disruption.
    async fn is_disrupted(&self, name: &str) -> Result<bool> {
        let pod = self.cluster.pod(name).await?;
        let conditions = pod["status"]["conditions"].as_array();
        let is_it = |condition: &Value| {
            condition["type"] == "DisruptionTarget"
                && condition["status"] == "True"
                && condition["reason"] == "TerminationByKubelet"
        };
        Ok(conditions.into_iter().flatten().any(is_it))
    }

    /// Waits until a condition of the node has this status.
    async fn condition(&self, name: &str, status: &str) -> Result<()> {
        let plane = &self.cluster.control_plane;
        let has_it = async |_: &Node| {
            let node = plane.get(NODE).await?;
            let conditions = node["status"]["conditions"].as_array();
            let is_it = |one: &Value| one["type"] == name && one["status"] == status;
            Ok(conditions.into_iter().flatten().any(is_it))
        };
        let what = format!("{name} is {status}");
        self.cluster.node.await_until(&what, SOON, has_it).await
    }

    /// Waits for an event with a reason about an object, and returns its message.
    async fn event(&self, object: &str, reason: &str) -> Result<String> {
        let plane = &self.cluster.control_plane;
        let find = async || {
            let events = plane.get(EVENTS).await?;
            let is_it = |event: &&Value| {
                event["reason"] == reason && event["involvedObject"]["name"] == object
            };
            let events = events["items"].as_array().context("no events")?;
            Ok::<_, anyhow::Error>(events.iter().find(is_it).cloned())
        };
        let what = format!("event {reason} of {object}");
        let is_there = async |_: &Node| Ok(find().await?.is_some());
        self.cluster.node.await_until(&what, SOON, is_there).await?;
        let event = find().await?.context("no event")?;
        Ok(event["message"].as_str().unwrap_or_default().to_owned())
    }

    /// The memory in bytes that is available on the node, as the eviction manager measures it.
    async fn available_memory(&self) -> Result<u64> {
        let page = self.cluster.node.page("/stats/summary").await?;
        let summary: Value = serde_json::from_str(&page)?;
        let available = &summary["node"]["memory"]["availableBytes"];
        available.as_u64().context("no available memory")
    }

    /// What `kubelet` prints with these arguments.
    fn prints(&self, args: &[&str]) -> Result<String> {
        let output = self.cluster.node.kubelet_command(args)?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A command that holds memory in its own process.
fn hold(mebibytes: u32) -> String {
    format!("dd if=/dev/zero bs={mebibytes}M count=2 2>/dev/null | sleep 1000")
}

/// A command that fills the pod's volume.
fn fill(mebibytes: u32) -> String {
    format!("dd if=/dev/zero of=/data/file bs=1M count={mebibytes}")
}

fn flags(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

/// Runs a test on both runtimes.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $name:ident: $run:path, $disks:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            $(#[$attribute])*
            async fn on_docker_through_the_shim() {
                $run(Node::with_shim_on($disks).await).await.unwrap();
            }

            #[tokio::test]
            $(#[$attribute])*
            async fn on_containerd() {
                $run(Node::with_containerd_on($disks).await).await.unwrap();
            }
        }
    )*};
}

/// Enough for pods' volumes, and little enough to fill.
const KUBELET_DISK: Disks = Disks {
    kubelet: Some(320),
    runtime: None,
};
const RUNTIME_DISK: Disks = Disks {
    kubelet: None,
    runtime: Some(320),
};
const BOTH_DISKS: Disks = Disks {
    kubelet: Some(320),
    runtime: Some(320),
};
const LARGER_DISKS: Disks = Disks {
    kubelet: Some(600),
    runtime: Some(600),
};

on_both! {
    scarce_memory: memory::run, Disks::default();
    minimum_reclaim_of_memory: memory::minimum_reclaim, Disks::default();
    scarce_disk: disk::run, KUBELET_DISK;
    minimum_reclaim: disk::minimum_reclaim, KUBELET_DISK;
    scarce_disk_of_the_runtime: runtime_disk::run, RUNTIME_DISK;
    scarce_pids: pids::run, Disks::default();
    #[ignore = "takes ten minutes, and fills an eighth of the machine's memory"]
    soft_thresholds: soft::run, BOTH_DISKS;
    #[ignore = "takes half an hour, and needs a machine of its own"]
    leaks_of_memory_and_disk: mixed_load::run, LARGER_DISKS;
    full_disk_of_the_kubelet: full_disk::run, KUBELET_DISK;
    limits_of_local_storage: local_storage::run, Disks::default();
    unused_images_go_before_pods: image_collection::before_pods, RUNTIME_DISK;
    #[ignore = "takes six minutes"]
    unused_images_go_by_space: image_collection::by_space, RUNTIME_DISK;
    #[ignore = "takes six minutes"]
    unused_images_go_by_age: image_collection::by_age, RUNTIME_DISK;
    dead_containers: container_collection::run, Disks::default();
}
