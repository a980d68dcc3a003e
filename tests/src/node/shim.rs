//! Start and stop of a node's shim.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use cri_proto::runtime::v1::{RuntimeCondition, StatusRequest};
use test_run::process::Process;
use tokio::time::{Instant, sleep};

use super::{CNI_PLUGINS, NO_ENGINE, Network, Node, Runtime, STARTUP, alive, binary};

impl Node {
    /// Starts the shim and waits until it reports `RuntimeReady`.
    pub async fn start_shim(&mut self) -> Result<()> {
        self.start_shim_with(&[]).await
    }

    /// [`Self::start_shim`] with additional flags.
    pub async fn start_shim_with(&mut self, extra: &[&str]) -> Result<()> {
        let endpoint = self.engine().endpoint();
        let binary = binary("dockershim")?;
        self.start_shim_by(&binary, &[], &endpoint, extra).await
    }

    /// [`Self::start_shim`] with the engine at this endpoint.
    pub async fn start_shim_on(&mut self, endpoint: &str) -> Result<()> {
        let binary = binary("dockershim")?;
        self.start_shim_by(&binary, &[], endpoint, &[]).await
    }

    /// [`Self::start_shim`] without access to the engine's data directory, with the engine at this
    /// endpoint and additional flags.
    pub async fn start_shim_apart(&mut self, endpoint: &str, flags: &[&str]) -> Result<()> {
        let data = self.path("engine/data").display().to_string();
        let binary = binary("dockershim")?.display().to_string();
        let hide = "mount -t tmpfs none \"$0\" && exec \"$@\"";
        let before = ["--mount", "--", "sh", "-c", hide, &data, &binary];
        // The shim cannot see the engine's process, so it cannot tell whether the engine may lower
        // an oom_score_adj.
        let extra = [&["--clamp-oom-score-adj=always"], flags].concat();
        self.start_shim_by(Path::new("unshare"), &before, endpoint, &extra)
            .await
    }

    /// A node with the shim [beside the engine](Self::start_shim_beside_the_engine), so that its
    /// streaming server is in the kubelet's network namespace.
    pub async fn with_shim_beside_the_engine() -> Result<Self> {
        let mut node = Self::with_shim().await?;
        node.stop_shim().await?;
        node.start_shim_beside_the_engine(&[]).await?;
        Ok(node)
    }

    /// [`Self::start_shim_with`] in the network namespace of the engine and with the namespace's
    /// devices in `/sys`, as on a real node.
    pub async fn start_shim_beside_the_engine(&mut self, extra: &[&str]) -> Result<()> {
        let endpoint = self.engine().endpoint();
        let target = self.engine().netns().to_string();
        let binary = binary("dockershim")?.display().to_string();
        let groups = self.path("cgroup");
        fs::create_dir_all(&groups)?;
        let groups = groups.display();
        let devices = format!(
            "mount --rbind /sys/fs/cgroup {groups} && mount -t sysfs none /sys && \
             mount --rbind {groups} /sys/fs/cgroup && exec \"$0\" \"$@\""
        );
        let before = [
            "--target", &target, "--net", "--", "unshare", "--mount", "--", "sh", "-c", &devices,
            &binary,
        ];
        self.start_shim_by(Path::new("nsenter"), &before, &endpoint, extra)
            .await
    }

    async fn start_shim_by(
        &mut self,
        program: &Path,
        before: &[&str],
        endpoint: &str,
        extra: &[&str],
    ) -> Result<()> {
        let path = |name: &str| self.path(name).display().to_string();
        let mut args = vec![
            format!("--container-runtime-endpoint={}", self.cri_endpoint()),
            format!("--docker-endpoint={endpoint}"),
            format!("--root-directory={}", path("shim")),
        ];
        // The shim reaches the engine through its socket, and tests reach the shim's streaming
        // server in their own network namespace.
        let mut netns = None;
        match &self.runtime {
            Runtime::Containerd(_) => bail!("{NO_ENGINE}"),
            Runtime::Docker {
                network: Network::Docker,
                ..
            } => args.push("--network-plugin=docker".to_owned()),
            Runtime::Docker { engine, .. } => {
                // CNI plugins change the network namespace in which they run.
                netns = Some(engine.netns());
                args.extend([
                    "--network-plugin=cni".to_owned(),
                    format!("--cni-bin-dir={},{CNI_PLUGINS}", path("cni/bin")),
                    format!("--cni-conf-dir={}", path("cni/net.d")),
                    format!("--cni-cache-dir={}", path("cni/cache")),
                ]);
            }
        }
        let mut all = before.to_vec();
        all.extend(args.iter().map(String::as_str));
        all.extend(extra);
        let shim = Process::start(
            "dockershim",
            netns,
            program,
            &all,
            &self.path("dockershim.log"),
        )?;
        self.shim = Some(shim);
        let deadline = Instant::now() + STARTUP;
        loop {
            if self.runtime_is_ready().await.unwrap_or_default() {
                return Ok(());
            }
            alive(&mut self.shim, deadline, "the shim does not answer")?;
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn runtime_is_ready(&self) -> Result<bool> {
        let mut runtime = self.runtime().await?;
        let response = runtime.status(StatusRequest::default()).await?;
        let conditions = response.into_inner().status.unwrap_or_default();
        let ready = |c: &RuntimeCondition| c.r#type == "RuntimeReady" && c.status;
        Ok(conditions.conditions.iter().any(ready))
    }

    /// `kill -9` of the shim.
    pub fn kill_shim(&mut self) -> Result<()> {
        self.shim.take().context("no shim runs")?.kill()
    }

    /// Stops the shim with SIGTERM and waits until it has ended.
    pub async fn stop_shim(&mut self) -> Result<()> {
        let shim = self.shim.take().context("no shim runs")?;
        // The shim waits for its clients, which run on this runtime and must notice the shutdown.
        let status = tokio::task::spawn_blocking(|| shim.stop()).await??;
        anyhow::ensure!(status.success(), "the shim ended with {status}");
        Ok(())
    }

    /// The shim's process id.
    pub fn shim_pid(&self) -> Option<u32> {
        self.shim.as_ref().map(Process::pid)
    }

    /// The shim's log.
    pub fn shim_log(&self) -> String {
        fs::read_to_string(self.path("dockershim.log")).unwrap_or_default()
    }
}
