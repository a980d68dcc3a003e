//! The design's figures, measured: `make bench`. Prints a table and asserts
//! nothing about speed: a machine may be slow.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::time::{Duration, Instant};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::{CreateContainerOptions, StartContainerOptions},
};
use cri_proto::runtime::v1 as cri;
use e2e::{
    cri::Cri,
    figures::{Figures, Unit, median},
    images::BUSYBOX,
    node::Node,
    usage::{cpu, rss},
};

/// Pods in front of the shim, and under the kubelet.
const SHIM_PODS: usize = 50;
const KUBELET_PODS: usize = 30;
/// Calls behind each median.
const CALLS: usize = 300;
/// For how long CPU time is counted.
const WATCH: Duration = Duration::from_secs(30);
/// Between two looks whether a pod runs, and for how long it is looked.
const POLL: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo test --benches` passes other flags; there is nothing to test here.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut figures = Figures::default();
    for run in 1..=Figures::runs() {
        eprintln!("run {run} of {}", Figures::runs());
        shim(&mut figures).await;
        kubelet(&mut figures).await;
    }
    print!("{figures}");
}

async fn shim(figures: &mut Figures) {
    let node = Node::with_shim().await.unwrap();
    let cri = Cri::of(&node).await.unwrap();

    let started = Instant::now();
    let mut pods = Vec::new();
    for batch in (0..SHIM_PODS).collect::<Vec<_>>().chunks(4) {
        let runs = batch.iter().map(|n| {
            let mut cri = cri.clone();
            async move {
                let before = Instant::now();
                let name = format!("pod-{n}");
                let pod = cri.run_pod(&name, &["sleep", "100000"]).await.unwrap();
                (pod, before.elapsed())
            }
        });
        pods.extend(futures::future::join_all(runs).await);
    }
    let total = started.elapsed();
    let mut times: Vec<_> = pods.iter().map(|(_, time)| *time).collect();
    figures.add(
        "run + create + start, 4 in parallel, p50",
        seconds(&mut times),
        Unit::Seconds,
        "<= 0.77 s",
    );
    figures.add(
        &format!("{SHIM_PODS} pods started"),
        total.as_secs_f64(),
        Unit::Seconds,
        "",
    );

    let pid = node.shim_pid().unwrap();
    let mut client = cri.clone();
    let (pod, container) = pods[SHIM_PODS / 2].0.clone();
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let before = Instant::now();
        let listed = client.pods(cri::PodSandboxFilter::default()).await.unwrap();
        times.push(before.elapsed());
        assert_eq!(listed.len(), SHIM_PODS);
    }
    figures.add(
        "ListPodSandbox p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 0.6 ms",
    );
    times.clear();
    for _ in 0..CALLS {
        let before = Instant::now();
        let listed = client.containers(cri::ContainerFilter::default()).await;
        times.push(before.elapsed());
        assert_eq!(listed.unwrap().len(), SHIM_PODS);
    }
    figures.add(
        "ListContainers p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 0.6 ms",
    );
    times.clear();
    for _ in 0..CALLS {
        let before = Instant::now();
        client.status(&container).await.unwrap();
        times.push(before.elapsed());
    }
    figures.add(
        "ContainerStatus p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 0.5 ms",
    );
    times.clear();
    for _ in 0..CALLS {
        let before = Instant::now();
        client.pod_status(&pod).await.unwrap();
        times.push(before.elapsed());
    }
    figures.add(
        "PodSandboxStatus p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 0.5 ms",
    );
    times.clear();
    for _ in 0..CALLS {
        let before = Instant::now();
        let request = cri::ListContainerStatsRequest::default();
        let listed = client.runtime.list_container_stats(request).await.unwrap();
        times.push(before.elapsed());
        assert_eq!(listed.into_inner().stats.len(), SHIM_PODS);
    }
    figures.add(
        "ListContainerStats p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 5 ms",
    );
    times.clear();
    for _ in 0..20 {
        let before = Instant::now();
        client.exec(&container, &["true"], 30).await.unwrap();
        times.push(before.elapsed());
    }
    figures.add(
        "ExecSync p50",
        millis(&mut times),
        Unit::Milliseconds,
        "<= 60 ms",
    );
    figures.add(
        "shim memory (RSS), 50 pods",
        rss(pid).unwrap(),
        Unit::Mebibytes,
        "<= 12 MiB",
    );

    let (before, used) = (Instant::now(), cpu(pid).unwrap());
    while before.elapsed() < WATCH {
        client.pods(cri::PodSandboxFilter::default()).await.unwrap();
        client
            .containers(cri::ContainerFilter::default())
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    figures.add(
        "shim CPU under a 1 Hz relist",
        share(cpu(pid).unwrap() - used, before.elapsed()),
        Unit::Percent,
        "<= 0.1 %",
    );
}

async fn kubelet(figures: &mut Figures) {
    let node = Node::with_kubelet().await.unwrap();
    let manifest = |n: usize| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{n}}}\nspec:\n  \
             terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    \
             image: e2e.local/busybox:1\n    command: [sleep, '100000']\n"
        )
    };
    let started = Instant::now();
    for n in 0..KUBELET_PODS {
        node.write_manifest(&format!("{n}.yaml"), &manifest(n))
            .unwrap();
    }
    node.await_until("all run", Duration::from_secs(300), async |node| {
        let pods = node.pods().await?;
        Ok(pods.len() == KUBELET_PODS && pods.iter().all(e2e::node::is_ready))
    })
    .await
    .unwrap();
    figures.add(
        &format!("{KUBELET_PODS} static pods, files written to Running"),
        started.elapsed().as_secs_f64(),
        Unit::Seconds,
        "",
    );
    let pid = node.kubelet_pid().unwrap();
    // What the start has left to do is done by then.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (before, used) = (Instant::now(), cpu(pid).unwrap());
    tokio::time::sleep(WATCH).await;
    figures.add(
        "kubelet idle CPU, 30 pods",
        share(cpu(pid).unwrap() - used, before.elapsed()),
        Unit::Percent,
        "<= 0.3 %",
    );
    figures.add(
        "kubelet memory (RSS), 30 pods",
        rss(pid).unwrap(),
        Unit::Mebibytes,
        "<= 20 MiB",
    );
    let (mut times, mut floor) = (Vec::new(), Vec::new());
    for n in 100..109 {
        let before = Instant::now();
        node.write_manifest(&format!("{n}.yaml"), &manifest(n))
            .unwrap();
        let name = format!("pod-{n}");
        while !node
            .pod(&name)
            .await
            .unwrap()
            .is_some_and(|pod| e2e::node::is_ready(&pod))
        {
            assert!(before.elapsed() < DEADLINE, "{}", node.kubelet_log());
            tokio::time::sleep(POLL).await;
        }
        times.push(before.elapsed());
        let before = Instant::now();
        start_by_the_engine(&node).await;
        floor.push(before.elapsed());
    }
    figures.add(
        "static pod, file written to Running, p50",
        seconds(&mut times),
        Unit::Seconds,
        "<= 0.35 s",
    );
    figures.add(
        "the same two containers by the engine alone",
        seconds(&mut floor),
        Unit::Seconds,
        "",
    );
}

/// What a pod of one container comes to in the engine: a container with a network, and
/// one in that.
async fn start_by_the_engine(node: &Node) {
    let docker = node.docker().unwrap();
    let mut network = None;
    for _ in 0..2 {
        let body = ContainerCreateBody {
            image: Some(BUSYBOX.to_owned()),
            cmd: Some(vec!["sleep".to_owned(), "100000".to_owned()]),
            host_config: Some(HostConfig {
                network_mode: network.map(|id| format!("container:{id}")),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = None::<CreateContainerOptions>;
        let id = docker.create_container(options, body).await.unwrap().id;
        let options = None::<StartContainerOptions>;
        docker.start_container(&id, options).await.unwrap();
        network = Some(id);
    }
}

/// The median, in milliseconds.
fn millis(times: &mut [Duration]) -> f64 {
    seconds(times) * 1e3
}

/// The median, in seconds.
fn seconds(times: &mut [Duration]) -> f64 {
    let mut times: Vec<_> = times.iter().map(Duration::as_secs_f64).collect();
    median(&mut times)
}

/// `cpu` seconds of so much time, in percent.
fn share(cpu: f64, time: Duration) -> f64 {
    cpu / time.as_secs_f64() * 100.0
}
