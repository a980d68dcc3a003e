//! The utility chains, with the real iptables in a network namespace of the test's own.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use kubelet_host::iptables::{Family, UtilityChains};
use tempfile::TempDir;
use test_run::skips;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace, and programs that work in it.
struct Namespace {
    holder: Child,
    dir: TempDir,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Namespace {
    /// Returns `None` and skips `test` on a machine without iptables.
    async fn new(test: &str) -> Result<Option<Self>> {
        if Command::new("iptables").arg("--version").output().is_err() {
            skips::skip(test, "iptables is not installed");
            return Ok(None);
        }
        let holder = Command::new("unshare")
            .args(["--net", "--", "sleep", "infinity"])
            .spawn()
            .context("unshare")?;
        let namespace = Self {
            holder,
            dir: TempDir::new()?,
        };
        let own = fs::read_link("/proc/self/ns/net")?;
        let theirs = format!("/proc/{}/ns/net", namespace.holder.id());
        timeout(PATIENCE, async {
            while fs::read_link(&theirs).map_or(true, |theirs| theirs == own) {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .context("no network namespace")?;
        Ok(Some(namespace))
    }

    /// A program that runs `name` in the namespace.
    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        let net = format!("/proc/{}/ns/net", self.holder.id());
        let script = format!("#!/bin/sh\nexec nsenter --net={net} {name} \"$@\"\n");
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

/// Runs a program, and returns the lines of its output.
fn lines(program: &Path, arguments: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(program).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(text(&output.stdout).lines().map(str::to_owned).collect())
}

fn keep(program: &Path, family: Family) -> (JoinHandle<()>, CancellationToken) {
    let cancel = CancellationToken::new();
    let chains = UtilityChains::new(program.to_owned(), family);
    let kept = tokio::spawn(chains.keep(PERIOD, cancel.clone()));
    (kept, cancel)
}

/// Waits until a table has the chains and rules `expected`, and no others but the built-in chains.
async fn await_table(program: &Path, table: &str, expected: &[&str]) -> Result<()> {
    let mut found = Vec::new();
    let wait = async {
        loop {
            found = lines(program, &["-t", table, "-S"])?;
            found.retain(|line| !line.starts_with("-P"));
            if found == expected {
                return Ok(());
            }
            sleep(PERIOD).await;
        }
    };
    match timeout(PATIENCE, wait).await {
        Ok(result) => result,
        Err(_) => bail!("{table}: {found:#?}, expected {expected:#?}"),
    }
}

/// The rules of the table `filter`, as `iptables -S` prints them.
const FILTER: [&str; 5] = [
    "-N KUBE-FIREWALL",
    "-N KUBE-KUBELET-CANARY",
    "-A INPUT -j KUBE-FIREWALL",
    "-A OUTPUT -j KUBE-FIREWALL",
    "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming \
     localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
];

#[tokio::test]
async fn chains_are_created_once_and_again_after_a_flush() -> Result<()> {
    let Some(namespace) = Namespace::new("iptables chains").await? else {
        return Ok(());
    };
    let program = namespace.program("iptables")?;
    let all_there = async || {
        await_table(&program, "nat", &["-N KUBE-KUBELET-CANARY"]).await?;
        let mangle = ["-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY"];
        await_table(&program, "mangle", &mangle).await?;
        await_table(&program, "filter", &FILTER).await
    };
    let (kept, cancel) = keep(&program, Family::V4);
    all_there().await?;
    for table in ["mangle", "nat", "filter"] {
        // The chains may come back in between.
        timeout(PATIENCE, async {
            while lines(&program, &["-w", "-t", table, "-F"]).is_err()
                || lines(&program, &["-w", "-t", table, "-X"]).is_err()
            {
                sleep(PERIOD).await;
            }
        })
        .await?;
    }
    all_there().await?;
    cancel.cancel();
    kept.await?;
    // Another kubelet finds them, and adds only what is missing, also beside the canaries.
    let delete = ["-w", "-D", "INPUT", "-j", "KUBE-FIREWALL"];
    lines(&program, &delete)?;
    let (kept, cancel) = keep(&program, Family::V4);
    all_there().await?;
    cancel.cancel();
    kept.await?;
    all_there().await
}

#[tokio::test]
async fn ipv6_has_no_firewall_chain() -> Result<()> {
    let Some(namespace) = Namespace::new("ip6tables chains").await? else {
        return Ok(());
    };
    let program = namespace.program("ip6tables")?;
    let (kept, cancel) = keep(&program, Family::V6);
    let mangle = ["-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY"];
    await_table(&program, "mangle", &mangle).await?;
    await_table(&program, "filter", &["-N KUBE-KUBELET-CANARY"]).await?;
    cancel.cancel();
    Ok(kept.await?)
}

#[tokio::test]
async fn nothing_is_kept_without_iptables() -> Result<()> {
    let dir = TempDir::new()?;
    let (kept, _cancel) = keep(&dir.path().join("iptables"), Family::V4);
    Ok(timeout(PATIENCE, kept).await??)
}
