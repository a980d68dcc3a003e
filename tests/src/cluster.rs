//! A cluster of one node: a control plane in the node's network namespace, and a kubelet that joins
//! it as after `kubeadm join`.

use std::{
    fs,
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Result, bail};
use serde_json::Value;
use test_api_server::Caller;
use tokio::time::{Instant, sleep};

use crate::{
    control_plane::{ControlPlane, Programs},
    kubectl::Kubectl,
    node::Node,
};

/// The deadline for the node to become ready after the kubelet's start.
const STARTUP: Duration = Duration::from_secs(60);

/// The kubelet's health check, through the API server's proxy.
const HEALTH: &str = "/api/v1/nodes/node/proxy/healthz";

/// A cluster of one node, named `node`.
#[derive(Debug)]
pub struct Cluster {
    // Dropped before the node, because it may write into the node's directory.
    /// The control plane.
    pub control_plane: ControlPlane,
    /// The node.
    pub node: Node,
    kubectl: Kubectl,
    flags: Vec<String>,
}

impl Cluster {
    /// Starts the API server of the tests beside the node, and a kubelet that joins with a
    /// bootstrap token. Returns once the node is ready.
    pub async fn of(node: Node) -> Result<Self> {
        Self::with_flags(node, &[]).await
    }

    /// [`Self::of`] with additional flags for the kubelet.
    pub async fn with_flags(node: Node, flags: &[String]) -> Result<Self> {
        let control_plane = ControlPlane::double(node.namespace()).await?;
        Self::join(node, control_plane, flags).await
    }

    /// [`Self::of`] with the Kubernetes servers.
    pub async fn by_kubernetes(node: Node, programs: &Programs) -> Result<Self> {
        let directory = node.path("control-plane");
        let control_plane =
            ControlPlane::kubernetes(node.namespace(), &directory, programs).await?;
        Self::join(node, control_plane, &[]).await
    }

    async fn join(node: Node, control_plane: ControlPlane, flags: &[String]) -> Result<Self> {
        let admin = control_plane.kubeconfig(&Caller::admin())?;
        let kubectl = Kubectl::new(&admin)?.within(node.namespace());
        fs::write(
            node.path("bootstrap.conf"),
            control_plane.bootstrap_kubeconfig(),
        )?;
        fs::write(node.path("ca.crt"), control_plane.authority_pem())?;
        let mut cluster = Self {
            control_plane,
            node,
            kubectl,
            flags: flags.to_vec(),
        };
        cluster.start_kubelet().await?;
        cluster.await_ready().await?;
        Ok(cluster)
    }

    /// Starts the kubelet as a member of the cluster.
    pub async fn start_kubelet(&mut self) -> Result<()> {
        let path = |name: &str| self.node.path(name).display().to_string();
        let config = format!(
            "authentication:\n  anonymous: {{enabled: false}}\n  webhook: {{enabled: true}}\n  \
             x509: {{clientCAFile: {}}}\nauthorization: {{mode: Webhook}}\n\
             rotateCertificates: true\nserverTLSBootstrap: true\n",
            path("ca.crt")
        );
        let flags = [
            "--kubeconfig".to_owned(),
            path("kubelet.conf"),
            "--bootstrap-kubeconfig".to_owned(),
            path("bootstrap.conf"),
        ];
        let flags = flags.iter().chain(&self.flags);
        let flags: Vec<&str> = flags.map(String::as_str).collect();
        self.node.start_kubelet_with(&config, &flags).await
    }

    /// Restarts the kubelet with other flags.
    pub async fn restart_kubelet_with(&mut self, flags: &[String]) -> Result<()> {
        self.node.kill_kubelet()?;
        self.flags = flags.to_vec();
        self.start_kubelet().await?;
        self.await_ready().await
    }

    /// Waits until the API server reports the node as ready and can reach the kubelet.
    async fn await_ready(&self) -> Result<()> {
        let deadline = Instant::now() + STARTUP;
        loop {
            let node = self.control_plane.get("/api/v1/nodes/node").await?;
            let conditions = node["status"]["conditions"].as_array();
            let is_ready = conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            // The kubelet's serving certificate may be issued later than its client certificate.
            let reached = self.control_plane.get(HEALTH).await;
            if is_ready && reached.as_ref().is_ok_and(|answer| answer == "ok") {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.node.kubelet_log();
                bail!("after {STARTUP:?} the node is {reached:?} {node:#}\nkubelet:\n{log}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A pod as the API server reports it; null if it does not exist.
    pub async fn pod(&self, name: &str) -> Result<Value> {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        self.control_plane.get(&path).await
    }

    /// Waits until `wanted` accepts a pod; the pod is null if it does not exist.
    ///
    /// # Errors
    /// The deadline passed. The error has the last state of the pod and the kubelet's log.
    pub async fn await_pod(
        &self,
        name: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + within;
        loop {
            let pod = self.pod(name).await?;
            if wanted(&pod) {
                return Ok(pod);
            }
            if Instant::now() > deadline {
                let log = self.node.kubelet_log();
                bail!("after {within:?} {name} is {pod:#}\nkubelet:\n{log}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A `kubectl` command with these arguments, as the administrator, in the node's network
    /// namespace.
    pub fn kubectl(&self, args: &[&str]) -> Command {
        self.kubectl.command(args).into_std()
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    /// The command failed. The error has its error output and the kubelet's log.
    pub fn kubectl_prints(&self, args: &[&str]) -> Result<String> {
        let Output {
            status,
            stdout,
            stderr,
        } = self.kubectl(args).output()?;
        if !status.success() {
            bail!(
                "kubectl {args:?}: {status}: {}\nkubelet:\n{}",
                String::from_utf8_lossy(&stderr),
                self.node.kubelet_log()
            );
        }
        Ok(String::from_utf8(stdout)?)
    }
}
