//! A cluster of one node with the driver, and the helpers of these tests.

use std::{
    fs,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, bail};
use e2e::cluster::Cluster;
use hyper::{Method, Request};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use test_api_server::Caller;
use tokio::time::{Instant, sleep};

use super::{
    driver::{Driver, NAME},
    programs::Programs,
};

/// The time for any step: longer than the kubelet's wait for volumes, and than its longest
/// back-off.
const LIMIT: Duration = Duration::from_secs(240);

/// Paths of CSI drivers and storage classes.
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// The cluster and the driver.
pub(crate) struct Site {
    // Dropped first, because its loop devices have their files below the node's directory.
    /// The driver.
    pub driver: Driver,
    /// The cluster.
    pub cluster: Cluster,
    /// Whether volumes must be attached, because controllers create VolumeAttachments.
    pub attaches: bool,
    admin: Client,
    random: Random,
}

/// Random numbers that a seed determines.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Site {
    /// Starts the driver on the cluster's node, and creates the driver's objects.
    pub(crate) async fn new(cluster: Cluster, programs: Programs, seed: u64) -> Result<Self> {
        let attaches = cluster.control_plane.has_controllers();
        let admin = cluster.control_plane.kubeconfig(&Caller::admin())?;
        let mut site = Self {
            driver: Driver::start(&cluster.node, programs, attaches).await?,
            admin: cluster.control_plane.client(admin).await?,
            cluster,
            attaches,
            random: Random { seed, drawn: 0 },
        };
        fs::create_dir_all(site.said())?;
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": NAME},
            "spec": {
                "attachRequired": attaches,
                "podInfoOnMount": true,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            },
        });
        site.create(DRIVERS, &driver).await?;
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": NAME},
            "provisioner": NAME, "allowVolumeExpansion": true,
        });
        site.create(CLASSES, &class).await?;
        site.until("the driver is registered", async |site| {
            let node = site.get("/apis/storage.k8s.io/v1/csinodes/node").await?;
            let mut drivers = node["spec"]["drivers"].as_array().into_iter().flatten();
            Ok(drivers.any(|driver| driver["name"] == NAME).then_some(()))
        })
        .await?;
        Ok(site)
    }

    /// A random number below `below`, determined by the seed.
    pub(crate) fn random(&mut self, below: u64) -> u64 {
        let Random { seed, drawn } = &mut self.random;
        *drawn += 1;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        hasher.hash_one((*seed, *drawn)) % below
    }

    /// The directory in which each pod writes a file of its name.
    pub(crate) fn said(&self) -> PathBuf {
        self.cluster.node.path("said")
    }

    // === the API server ===

    /// The object at this path; null if there is none.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.cluster.control_plane.get(path).await
    }

    /// Creates an object in this collection.
    pub(crate) async fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        self.ask(Method::POST, "json", collection, object).await
    }

    /// Changes an object with a merge patch.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.ask(Method::PATCH, "merge-patch+json", path, patch)
            .await
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.ask(Method::DELETE, "json", path, &json!({})).await
    }

    async fn ask(&self, method: Method, kind: &str, path: &str, body: &Value) -> Result<Value> {
        let what = format!("{method} {path}");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", format!("application/{kind}"))
            .body(Body::from(body.to_string().into_bytes()))?;
        match self
            .cluster
            .control_plane
            .send(&self.admin, request)
            .await?
        {
            (200..=299, object) => Ok(object),
            (code, answer) => bail!("{what}: {code}: {answer}"),
        }
    }

    /// Waits until `look` returns something, and attaches and detaches volumes meanwhile.
    ///
    /// # Errors
    /// The deadline passed; the error contains the latest logs of the kubelet and the driver.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        look: impl AsyncFn(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.driver.keep_running()?;
            self.attach_and_detach().await?;
            if let Some(found) = look(self).await? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("after {LIMIT:?} not yet: {what}\n{}", self.told()?);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The latest logs of the kubelet and the driver, and what is left.
    fn told(&self) -> Result<String> {
        let last = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(150)..].join("\n")
        };
        let driver = last(&self.driver.log_from(0)?);
        let kubelet = last(&self.cluster.node.kubelet_log());
        let left = self.left_on_node()?.join("\n");
        let volumes = self.driver.volumes();
        Ok(format!(
            "left:\n{left}\nvolumes: {volumes:?}\ndriver:\n{driver}\nkubelet:\n{kubelet}"
        ))
    }
}
