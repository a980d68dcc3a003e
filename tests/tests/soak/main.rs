//! Pods are created, used and removed in parallel while the shim is killed, the engine is stopped
//! and killed at random times, some events of the engine are lost, some requests fail and some
//! answers are late. In the end nothing of the pods is left, no log line is lost or doubled, and
//! each pod that failed has a cause. `E2E_SOAK_SECONDS` is the duration, which is short by default.
//! `E2E_SOAK_SEED` repeats the choices of another run.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod chaos;
mod containers_run_on;
mod left_overs;
mod tally;
mod worker;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use chaos::{behind_a_proxy, chaos, seconds, seed};
use e2e::{cri::Cri, node::Node};
use tally::Tally;
use test_run::random::Random;
use tokio::time::Instant;
use worker::Worker;

const NETWORK: &str = "soak";
/// The number of pods at the same time.
const WORKERS: usize = 4;
/// The time for one step of a pod's life during the disturbances.
const STEP: Duration = Duration::from_secs(90);
/// The number of pods before and between the two measurements of the shim's memory.
const WARM_UP: usize = 10;
const STEADY: usize = 30;
/// The allowed difference in KiB: the allocator's slack.
const SLACK: u64 = 4 * 1024;
/// The seed's streams of random numbers.
const CHAOS: u64 = 1000;
const PROXY: u64 = 1001;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_and_no_line_lost_whatever_is_killed() {
    let (seconds, seed) = (seconds(), seed());
    let mut node = Node::with_cni().await.unwrap();
    configure_network(&node).unwrap();
    let proxy = behind_a_proxy(&mut node, Random::new(seed, PROXY))
        .await
        .unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let tally = Arc::new(Tally::default());
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let worker = Worker {
                name: format!("w{n}"),
                endpoint: node.cri_endpoint(),
                logs: node.path("logs"),
                tally: Arc::clone(&tally),
                proxy: Arc::clone(&proxy),
                random: Random::new(seed, n as u64),
                done: Arc::clone(&done),
            };
            tokio::spawn(worker.work())
        })
        .collect();
    let chaos = async {
        let kills = chaos(&mut node, &proxy, &tally, Random::new(seed, CHAOS), until).await?;
        done.store(true, Ordering::Relaxed);
        Ok(kills)
    };
    let workers = workers.into_iter().map(async |worker| worker.await?);
    let kills = match tokio::try_join!(chaos, futures::future::try_join_all(workers)) {
        Ok((kills, _)) => kills,
        Err(error) => panic!("{error:#}\nshim:\n{}", node.shim_log()),
    };
    println!("in {seconds} s: {tally}; {kills}; {proxy}");
    // A kill disturbs the pods that exist at the time; a failed request disturbs one pod at most.
    let (disturbed, causes) = (tally.disturbed(), WORKERS * tally.kills() + proxy.faults());
    assert!(
        disturbed <= causes,
        "{disturbed} pods were disturbed by {causes}"
    );
    assert!(tally.whole() >= tally.kills(), "{tally}");
    proxy.heal();
    left_overs::ready(&node).await.unwrap();
    let late = left_overs::take_away_late_sandboxes(&node, &tally).await;
    println!(
        "{} sandboxes came when their client had looked",
        late.unwrap()
    );
    left_overs::nothing_is_left(&node).await.unwrap();
    memory_is_steady(&node).await.unwrap();
}

fn configure_network(node: &Node) -> Result<()> {
    let config = serde_json::json!({
        "cniVersion": "1.0.0",
        "name": NETWORK,
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": node.path("cni/ipam"),
                "ranges": [[{"subnet": "10.89.0.0/24"}]],
            },
        }],
    });
    let new = node.path("soak.conflist");
    fs::write(&new, config.to_string())?;
    Ok(fs::rename(new, node.path("cni/net.d/10-soak.conflist"))?)
}

async fn memory_is_steady(node: &Node) -> Result<()> {
    let pid = node.shim_pid().context("no shim")?;
    let mut looks = Vec::new();
    let mut count = 0;
    for pods in [WARM_UP, STEADY] {
        for _ in 0..pods {
            count += 1;
            let mut cri = Cri::of(node).await?;
            let (pod, id) = cri.run_pod(&format!("m{count}"), &["sleep", "100"]).await?;
            cri.exec(&id, &["true"], 10).await?;
            cri.stop_pod(&pod).await?;
            cri.remove_pod(&pod).await?;
        }
        looks.push(memory(pid)?);
    }
    ensure!(
        looks[1] <= looks[0] + SLACK,
        "from {} KiB to {} KiB after {STEADY} more pods",
        looks[0],
        looks[1]
    );
    println!("memory: {} KiB, then {} KiB", looks[0], looks[1]);
    Ok(())
}

/// The resident memory of a process in KiB.
fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("no VmRSS")?.parse()?)
}
