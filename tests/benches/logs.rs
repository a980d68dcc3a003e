//! How fast the log of one container that writes a lot is followed, beside the engine
//! alone, and what the shim needs for it: `make bench`. Asserts that every line arrives
//! and nothing about speed.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bollard::{
    models::{ContainerCreateBody, HostConfig, HostConfigLogConfig},
    query_parameters::{
        CreateContainerOptions, RemoveContainerOptions, StartContainerOptions, WaitContainerOptions,
    },
};
use cri_proto::runtime::v1::ContainerState;
use e2e::{
    cri::{Cri, container, sandbox},
    figures::{Figures, Unit},
    images::BUSYBOX,
    node::Node,
};
use futures::TryStreamExt as _;

/// 100 MiB of lines of 50 bytes.
const LINE: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM";
const LINES: usize = 100 * 1024 * 1024 / 50;
const MIB: f64 = 100.0;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo test --benches` passes other flags; there is nothing to test here.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = format!("yes {LINE} | head -n {LINES}");
    let mut figures = Figures::default();
    for run in 1..=Figures::runs() {
        eprintln!("run {run} of {}", Figures::runs());
        let alone = MIB / engine_alone(&node, &script).await.as_secs_f64();
        figures.add(
            "100 MiB of short lines, the engine alone",
            alone,
            Unit::MebibytesPerSecond,
            "",
        );
        let followed = followed(&node, &mut cri, &script, run, &mut figures).await;
        figures.add(
            "the same, followed to the CRI log",
            followed,
            Unit::MebibytesPerSecond,
            "",
        );
        figures.add(
            "followed, of the engine's own speed",
            followed / alone * 100.0,
            Unit::Percent,
            ">= 50 %",
        );
    }
    print!("{figures}");
}

/// MiB a second from the start of a container to its end, by when its log is complete.
async fn followed(
    node: &Node,
    cri: &mut Cri,
    script: &str,
    run: u64,
    figures: &mut Figures,
) -> f64 {
    let pid = node.shim_pid().unwrap();
    let before = rss(pid);
    let most = Arc::new(AtomicU64::new(before));
    let watch = tokio::spawn({
        let most = Arc::clone(&most);
        async move {
            loop {
                most.fetch_max(rss(pid), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let mut pod = sandbox(&format!("logs-{run}"));
    let directory = node.path(&format!("logs-{run}"));
    pod.log_directory = directory.display().to_string();
    let mut config = container("main", &["sh", "-c", script]);
    config.log_path = "0.log".to_owned();
    let sandbox_id = cri.run(&pod).await.unwrap();
    let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
    let began = Instant::now();
    cri.start(&id).await.unwrap();
    while cri.status(&id).await.unwrap().state() != ContainerState::ContainerExited {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let rate = MIB / began.elapsed().as_secs_f64();
    watch.abort();
    assert_eq!(count_lines(&directory.join("0.log")), LINES);
    for (figure, kib) in [
        ("shim memory (RSS) before", before),
        ("shim memory (RSS) at most", most.load(Ordering::Relaxed)),
        ("shim memory (RSS) after", rss(pid)),
    ] {
        figures.add(figure, kib as f64 / 1024.0, Unit::Mebibytes, "");
    }
    cri.stop_pod(&sandbox_id).await.unwrap();
    cri.remove_pod(&sandbox_id).await.unwrap();
    fs::remove_dir_all(directory).unwrap();
    rate
}

/// The same output with the same log settings, but without a follower.
async fn engine_alone(node: &Node, script: &str) -> Duration {
    let docker = node.docker().unwrap();
    let bounds = [
        ("max-size", "8m"),
        ("max-file", "200"),
        ("compress", "false"),
    ];
    let body = ContainerCreateBody {
        image: Some(BUSYBOX.to_owned()),
        cmd: Some(["sh", "-c", script].map(str::to_owned).to_vec()),
        host_config: Some(HostConfig {
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".into()),
                config: Some(bounds.map(|(k, v)| (k.into(), v.into())).into()),
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let created = docker
        .create_container(None::<CreateContainerOptions>, body)
        .await
        .unwrap();
    let began = Instant::now();
    docker
        .start_container(&created.id, None::<StartContainerOptions>)
        .await
        .unwrap();
    let _ended: Vec<_> = docker
        .wait_container(&created.id, None::<WaitContainerOptions>)
        .try_collect()
        .await
        .unwrap();
    let took = began.elapsed();
    docker
        .remove_container(&created.id, None::<RemoveContainerOptions>)
        .await
        .unwrap();
    took
}

fn count_lines(path: &Path) -> usize {
    use std::io::BufRead as _;
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    file.lines()
        .filter(|line| line.as_ref().unwrap().ends_with(LINE))
        .count()
}

/// Resident memory of a process in KiB.
fn rss(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
