//! A cluster of one node: the test API server in the node's network namespace, and a
//! kubelet that joins it as one does after `kubeadm join`.

use std::{
    fs,
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    time::{Instant, sleep},
};

use crate::{
    api_server::{ApiServer, Caller, Listening},
    kubectl::Kubectl,
    node::Node,
};

/// The bootstrap token of the node.
const TOKEN: &str = "abcdef.0123456789abcdef";
/// How long the node may take to be ready after the kubelet's start.
const STARTUP: Duration = Duration::from_secs(60);

/// A cluster of one node, named `node`.
pub struct Cluster {
    /// The node.
    pub node: Node,
    /// The API server.
    pub api: ApiServer,
    kubectl: Kubectl,
    flags: Vec<String>,
    // Before its threads.
    _listening: Listening,
    threads: Option<Runtime>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts an API server beside the node, and a kubelet that joins it with a bootstrap
    /// token. Returns once the node is ready.
    pub async fn of(node: Node) -> Result<Self> {
        Self::with_flags(node, &[]).await
    }

    /// [`Self::of`] with further flags for its kubelets.
    pub async fn with_flags(node: Node, flags: &[String]) -> Result<Self> {
        let threads = node.namespace().runtime()?;
        let serving = threads.spawn(async {
            let api = ApiServer::start().map_err(|error| anyhow!("{error:?}"))?;
            let listener = TcpListener::bind("127.0.0.1:6443").await?;
            let listening = api.listen_on(listener)?;
            Ok::<_, anyhow::Error>((api, listening))
        });
        let (api, listening) = serving.await??;
        let bootstrapper = Caller::new("system:bootstrap:abcdef", &["system:bootstrappers"]);
        api.with_policy(|policy| policy.add_token(TOKEN, bootstrapper));
        api.run_scheduler(true);
        let admin = api
            .identity(&Caller::admin())
            .map_err(|error| anyhow!("{error:?}"))?;
        let kubectl = Kubectl::new(&listening.kubeconfig(&admin))?.within(node.namespace());
        fs::write(
            node.path("bootstrap.conf"),
            listening.kubeconfig_with_token(TOKEN),
        )?;
        fs::write(node.path("ca.crt"), api.authority_pem())?;
        let mut cluster = Self {
            node,
            api,
            kubectl,
            flags: flags.to_vec(),
            _listening: listening,
            threads: Some(threads),
        };
        cluster.start_kubelet().await?;
        cluster.await_ready().await?;
        Ok(cluster)
    }

    /// Starts the kubelet, as a member of the cluster.
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

    /// Waits until the API server has the node ready.
    async fn await_ready(&self) -> Result<()> {
        let deadline = Instant::now() + STARTUP;
        loop {
            let node = self.api.get("v1", "nodes", "", "node");
            let node = node.unwrap_or_default();
            let conditions = node["status"]["conditions"].as_array();
            let is_ready = conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.node.kubelet_log();
                bail!("after {STARTUP:?} the node is {node:#}\nkubelet:\n{log}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A pod as the API server has it; null when it has none.
    pub fn pod(&self, name: &str) -> Value {
        self.api
            .get("v1", "pods", "default", name)
            .unwrap_or_default()
    }

    /// Waits until a pod is as `wanted`; null is one that is not there.
    ///
    /// # Errors
    /// It was not in time: what it was last, and what the kubelet said.
    pub async fn await_pod(
        &self,
        name: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + within;
        loop {
            let pod = self.pod(name);
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

    /// `kubectl` with these arguments, as the administrator, in the node's network.
    pub fn kubectl(&self, args: &[&str]) -> Command {
        self.kubectl.command(args).into_std()
    }

    /// What `kubectl` prints.
    ///
    /// # Errors
    /// It fails: with what it said, and what the kubelet said.
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

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            // Waiting for them is not allowed in a test's own runtime.
            threads.shutdown_background();
        }
    }
}
