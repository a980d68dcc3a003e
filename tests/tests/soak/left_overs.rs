//! Left-overs once all pods are gone.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use bollard::query_parameters::ListContainersOptions;
use cri_proto::runtime::v1 as cri;
use e2e::{cri::Cri, node::Node};
use tokio::time::{Instant, sleep};

use super::{NETWORK, STEP, tally::Tally, worker::take_away};

/// Once a minute the engine removes the network namespaces that a crash left behind.
const LEFT_OVERS: Duration = Duration::from_secs(150);

/// Waits until the shim is steadily in sync with the engine that was started last.
///
/// # Errors
/// The deadline passed.
pub(crate) async fn ready(node: &Node) -> Result<()> {
    const STEADY: usize = 30;
    let steady = AtomicUsize::new(0);
    node.await_until("ready", STEP, async |node| {
        let request = cri::StatusRequest::default();
        let status = node.runtime().await?.status(request).await?.into_inner();
        let conditions = status.status.unwrap_or_default().conditions;
        let ready = !conditions.is_empty() && conditions.iter().all(|c| c.status);
        if !ready {
            steady.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        let looks = steady.fetch_add(1, Ordering::Relaxed);
        Ok(looks > STEADY)
    })
    .await
}

/// The engine may complete a request from before a crash after the client has stopped looking. A
/// client removes such sandboxes when it sees them. There may be only sandboxes whose creation was
/// never confirmed. Returns their number.
///
/// # Errors
/// There is another sandbox, or one cannot be removed.
pub(crate) async fn take_away_late_sandboxes(node: &Node, tally: &Tally) -> Result<usize> {
    let mut cri = Cri::of(node).await?;
    let late = cri.pods(cri::PodSandboxFilter::default()).await?;
    for pod in &late {
        let uid = pod.metadata.as_ref().map_or("", |m| &m.uid);
        ensure!(tally.is_unanswered(uid), "left over: {pod:?}");
        take_away(&node.cri_endpoint(), uid).await?;
    }
    Ok(late.len())
}

/// Waits until the runtime, the engine and the disk contain nothing of any pod; removes nothing.
pub(crate) async fn nothing_is_left(node: &Node) -> Result<()> {
    let files = |path: &str| -> Vec<_> {
        let entries = fs::read_dir(node.path(path)).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    };
    let deadline = Instant::now() + LEFT_OVERS;
    loop {
        let mut left = Vec::new();
        let mut cri = Cri::of(node).await?;
        for pod in cri.pods(cri::PodSandboxFilter::default()).await? {
            left.push(format!("sandbox {pod:?}"));
        }
        let all = ListContainersOptions {
            all: true,
            ..Default::default()
        };
        for container in node.docker()?.list_containers(Some(all)).await? {
            left.push(format!("container {container:?}"));
        }
        for directory in ["shim/logs", "shim/images", "cni/cache/results"] {
            left.extend(files(directory).iter().map(|f| f.display().to_string()));
        }
        // Each reserved address is a file named after it.
        let addresses = files(&format!("cni/ipam/{NETWORK}"));
        let reserved = addresses.iter().filter(|file| {
            let name = file.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.parse::<std::net::IpAddr>().is_ok())
        });
        left.extend(reserved.map(|file| file.display().to_string()));
        let links = String::from_utf8(node.in_net(&["ip", "-o", "link"])?.stdout)?;
        let veths = links.lines().filter(|line| line.contains("veth"));
        left.extend(veths.map(str::to_owned));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("left over: {left:#?}\nshim:\n{}", node.shim_log());
        }
        sleep(Duration::from_secs(1)).await;
    }
}
