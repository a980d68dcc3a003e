//! Pods are made, used and removed in parallel while the shim is killed and the engine is
//! stopped and killed at random moments, and while some of the engine's events never come,
//! some requests fail and some answers are late. At the end nothing of them is left, and no
//! line of a log was lost or doubled. `E2E_SOAK_SECONDS` says for how long; without it, short.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod containers_run_on;

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bollard::query_parameters::ListContainersOptions;
use cri_proto::runtime::v1::{self as cri, ContainerState};
use e2e::{
    asked,
    cri::{Cri, container, sandbox},
    engine_proxy::EngineProxy,
    node::Node,
};
use tokio::time::{Instant, sleep};

const NETWORK: &str = "soak";
const SECONDS: &str = "E2E_SOAK_SECONDS";
const SHORT: u64 = 20;
/// One event in so many is dropped, and as many requests fail or are answered late.
const FAULTS: u64 = 100;
/// Pods that live at the same time.
const WORKERS: usize = 4;
/// What one step of a pod's life may take while everything is being killed around it.
const STEP: Duration = Duration::from_secs(90);
/// After a pod that failed: what was killed is not back at once.
const RETRY: Duration = Duration::from_millis(300);
/// The engine takes the network namespaces of what a crash left once a minute.
const LEFT_OVERS: Duration = Duration::from_secs(150);
/// Pods that the shim runs before, and between, the two looks at its memory.
const WARM_UP: usize = 10;
const STEADY: usize = 30;
/// What its memory may differ by, in KiB: the allocator's slack.
const SLACK: u64 = 4 * 1024;

/// What the workers share.
#[derive(Default)]
struct Tally {
    pods: AtomicUsize,
    /// Pods whose log was seen whole.
    whole: AtomicUsize,
    /// Goes up when the engine begins to go down, and when it is back, so that it is odd in
    /// between: what the engine had not read of its containers is gone.
    engine_turns: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_and_no_line_lost_whatever_is_killed() {
    let seconds = seconds();
    let mut node = Node::with_cni().await.unwrap();
    configure_network(&node).unwrap();
    let proxy = behind_a_proxy(&mut node).await.unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let tally = Arc::new(Tally::default());
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let (endpoint, logs) = (node.cri_endpoint(), node.path("logs"));
            let tally = Arc::clone(&tally);
            tokio::spawn(async move {
                let mut worker = Worker {
                    endpoint,
                    logs,
                    tally,
                    name: format!("w{n}"),
                };
                for round in 0.. {
                    // On a slow machine every pod so far may have met an end of the engine.
                    let has_whole = worker.tally.whole.load(Ordering::Relaxed) > 0;
                    if Instant::now() > until && has_whole {
                        break;
                    }
                    worker.round(round).await?;
                }
                Ok(())
            })
        })
        .collect();
    let kills = chaos(&mut node, &proxy, &tally, until).await.unwrap();
    for worker in workers {
        let ended: Result<()> = worker.await.unwrap();
        if let Err(error) = ended {
            panic!("{error:#}\nshim:\n{}", node.shim_log());
        }
    }
    let [pods, whole] = [&tally.pods, &tally.whole].map(|n| n.load(Ordering::Relaxed));
    println!("{pods} pods, {whole} with their whole log, in {seconds} s; {kills}; {proxy}");
    assert!(whole > 0);
    proxy.heal();
    ready(&node).await.unwrap();
    nothing_is_left(&node).await.unwrap();
    memory_is_steady(&node).await.unwrap();
}

fn seconds() -> u64 {
    asked::amount(SECONDS, SHORT)
}

// === what happens around the pods ===

/// Has the shim reach the engine through a proxy.
async fn behind_a_proxy(node: &mut Node) -> Result<EngineProxy> {
    let socket = node.path("proxy.sock");
    let proxy = EngineProxy::start(&node.engine().socket(), &socket, FAULTS)?;
    node.kill_shim()?;
    start_shim(node, &proxy).await?;
    Ok(proxy)
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

/// Kills and restarts until `until`; returns what it did.
async fn chaos(
    node: &mut Node,
    proxy: &EngineProxy,
    tally: &Tally,
    until: Instant,
) -> Result<String> {
    let (mut shims, mut stops, mut kills) = (0, 0, 0);
    while Instant::now() < until {
        sleep(Duration::from_millis(500 + random(3500))).await;
        match random(10) {
            0 => {
                stops += 1;
                tally.engine_turns.fetch_add(1, Ordering::SeqCst);
                node.engine_mut().stop()?;
                start_engine(node).await?;
                tally.engine_turns.fetch_add(1, Ordering::SeqCst);
            }
            1 => {
                kills += 1;
                tally.engine_turns.fetch_add(1, Ordering::SeqCst);
                kill_engine(node).await?;
                tally.engine_turns.fetch_add(1, Ordering::SeqCst);
            }
            _ => {
                shims += 1;
                kill_shim(node, proxy).await?;
            }
        }
    }
    Ok(format!(
        "the shim was killed {shims} times, the engine stopped {stops} and killed {kills} times"
    ))
}

/// `kill -9` of the shim, and its start some time later.
async fn kill_shim(node: &mut Node, proxy: &EngineProxy) -> Result<()> {
    node.kill_shim()?;
    sleep(Duration::from_millis(random(500))).await;
    start_shim(node, proxy).await
}

/// `kill -9` of the engine, and its start some time later.
async fn kill_engine(node: &mut Node) -> Result<()> {
    node.engine_mut().kill()?;
    sleep(Duration::from_millis(random(1000))).await;
    start_engine(node).await
}

/// As its service manager would. Late answers, one after the other, may take longer than a
/// start is waited for.
async fn start_shim(node: &mut Node, proxy: &EngineProxy) -> Result<()> {
    if node.start_shim_on(&proxy.endpoint()).await.is_ok() {
        return Ok(());
    }
    node.kill_shim()?;
    node.start_shim_on(&proxy.endpoint()).await
}

/// As its service manager would: an engine that was killed may fail to start at first.
async fn start_engine(node: &mut Node) -> Result<()> {
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        if node.engine_mut().start_again().await.is_ok() {
            return Ok(());
        }
        sleep(RETRY).await;
    }
    node.engine_mut().start_again().await
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

// === the pods ===

struct Worker {
    endpoint: String,
    logs: PathBuf,
    tally: Arc<Tally>,
    name: String,
}

impl Worker {
    /// One pod, from run to remove. What fails on the way fails for what is being killed;
    /// then the pod is taken away as a client has to that does not know what became of it.
    async fn round(&mut self, round: usize) -> Result<()> {
        let name = format!("{}-{round}", self.name);
        let mut config = sandbox(&name);
        config.log_directory = self.logs.join(&name).display().to_string();
        self.tally.pods.fetch_add(1, Ordering::Relaxed);
        let lines = 200 + random(3000) as usize;
        let turn = self.tally.engine_turns.load(Ordering::SeqCst);
        let lived = tokio::time::timeout(STEP, self.live(&config, lines)).await;
        let undisturbed =
            turn.is_multiple_of(2) && turn == self.tally.engine_turns.load(Ordering::SeqCst);
        let log = Path::new(&config.log_directory).join("main/0.log");
        let known_whole = matches!(lived, Ok(Ok(()))) && undisturbed;
        if !matches!(lived, Ok(Ok(()))) {
            sleep(RETRY).await;
        }
        self.take_away(&config).await?;
        let found = numbers(&log)?;
        if known_whole {
            ensure!(
                found.iter().copied().eq(1..=lines),
                "{}: {} of {lines} lines, the last {:?}",
                log.display(),
                found.len(),
                found.last()
            );
            self.tally.whole.fetch_add(1, Ordering::Relaxed);
        }
        // An engine that was killed may have lost some, but none comes twice.
        ensure!(
            found.windows(2).all(|pair| pair[0] < pair[1]),
            "{}: lines are doubled or out of order",
            log.display()
        );
        fs::remove_dir_all(&config.log_directory).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        Ok(())
    }

    async fn live(&self, config: &cri::PodSandboxConfig, lines: usize) -> Result<()> {
        let mut cri = Cri::at(&self.endpoint).await?;
        let pod = cri.run(config).await?;
        let script = format!(
            "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i; \
             [ $((i % 100)) -eq 0 ] && usleep 20000; done; sleep 0.3"
        );
        let mut main = container("main", &["sh", "-c", &script]);
        main.log_path = "main/0.log".to_owned();
        let id = cri.create(&pod, main, config).await?;
        cri.start(&id).await?;
        // It may have ended by now, and the shim been killed: neither is a failure.
        let _ = cri.exec(&id, &["true"], 10).await;
        let stats = cri::ListContainerStatsRequest::default();
        let _ = cri.runtime.list_container_stats(stats).await;
        loop {
            sleep(Duration::from_millis(100)).await;
            let Ok(mut cri) = Cri::at(&self.endpoint).await else {
                continue;
            };
            match cri.status(&id).await {
                Ok(status) if status.state() == ContainerState::ContainerExited => {
                    ensure!(status.exit_code == 0, "exit code {}", status.exit_code);
                    return Ok(());
                }
                Err(error) if error.code() == tonic::Code::NotFound => bail!(error),
                _ => {}
            }
        }
    }

    /// Removes whatever there is of a pod.
    async fn take_away(&self, config: &cri::PodSandboxConfig) -> Result<()> {
        let deadline = Instant::now() + STEP;
        let uid = config.metadata.as_ref().map_or("", |m| &m.uid);
        loop {
            match self.try_take_away(uid).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("a pod cannot be removed");
                }
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    async fn try_take_away(&self, uid: &str) -> Result<()> {
        let mut cri = Cri::at(&self.endpoint).await?;
        let all = cri.pods(cri::PodSandboxFilter::default()).await?;
        let of_pod = |pod: &cri::PodSandbox| pod.metadata.as_ref().is_some_and(|m| m.uid == uid);
        for pod in all.into_iter().filter(of_pod) {
            let filter = cri::ContainerFilter {
                pod_sandbox_id: pod.id.clone(),
                ..Default::default()
            };
            for container in cri.containers(filter).await? {
                cri.stop(&container.id, 0).await?;
                cri.remove(&container.id).await?;
            }
            cri.stop_pod(&pod.id).await?;
            cri.remove_pod(&pod.id).await?;
        }
        Ok(())
    }
}

/// The numbers that a log holds; none when there is no log.
fn numbers(log: &Path) -> Result<Vec<usize>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .map(|line| {
            let content = line.splitn(4, ' ').nth(3);
            let number = content.context("no content")?.parse();
            number.with_context(|| format!("{}: {line:?}", log.display()))
        })
        .collect()
}

// === the end ===

/// Waits until the shim is in step with the engine that was started last, and stays so.
async fn ready(node: &Node) -> Result<()> {
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

async fn nothing_is_left(node: &Node) -> Result<()> {
    let files = |path: &str| -> Vec<_> {
        let entries = fs::read_dir(node.path(path)).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    };
    let deadline = Instant::now() + LEFT_OVERS;
    loop {
        let mut left = Vec::new();
        let mut cri = Cri::of(node).await?;
        for pod in cri.pods(cri::PodSandboxFilter::default()).await? {
            // What was asked of the engine before a crash, it may make after it, when its
            // client has long looked. A kubelet removes such sandboxes when it sees them.
            let _ = cri.stop_pod(&pod.id).await;
            let _ = cri.remove_pod(&pod.id).await;
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
        // An address is a file of its own name.
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

/// Resident memory of a process in KiB.
fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("no VmRSS")?.parse()?)
}
