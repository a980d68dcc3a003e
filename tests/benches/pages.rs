//! What a scrape of the kubelet's pages costs: `make bench`. Prints a table and asserts nothing
//! about speed: a machine may be slow.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::time::{Duration, Instant};

use e2e::{
    figures::{Figures, Unit, median},
    node::Node,
    usage::{cpu, rss},
};
use test_run::size;

/// The numbers of pods at which the pages are scraped.
const PODS: [usize; 2] = [30, 110];
const PAGES: [(&str, &str); 3] = [
    ("summary", "/stats/summary"),
    ("resource", "/metrics/resource"),
    ("cadvisor", "/metrics/cadvisor"),
];
/// Scrapes behind each figure, unless `BENCH_SCRAPES` is set.
const SCRAPES: u64 = 10;
/// Longer than pages share a collection.
const PERIOD: Duration = Duration::from_millis(5_200);
const DEADLINE: Duration = Duration::from_secs(600);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo test --benches` passes other flags; there is nothing to test here.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut figures = Figures::default();
    for run in 1..=Figures::runs() {
        eprintln!("run {run} of {}", Figures::runs());
        pages(&mut figures).await;
    }
    print!("{figures}");
}

async fn pages(figures: &mut Figures) {
    let node = Node::with_kubelet().await.unwrap();
    let pid = node.kubelet_pid().unwrap();
    let mut written = 0;
    for pods in PODS {
        for n in written..pods {
            node.write_manifest(&format!("{n}.yaml"), &manifest(n))
                .unwrap();
        }
        written = pods;
        let all_run = async |node: &Node| {
            let all = node.pods().await?;
            Ok(all.len() == pods && all.iter().all(e2e::node::is_ready))
        };
        node.await_until("all run", DEADLINE, all_run)
            .await
            .unwrap();
        // What the start has left to do is done by then.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = scrape(&node, pid, &[]).await.cpu;
        let figure = format!("kubelet idle between two scrapes, {pods} pods, CPU");
        figures.add(&figure, idle, Unit::Milliseconds, "");
        for (name, path) in PAGES {
            let cost = scrape(&node, pid, &[path]).await.above(idle);
            let figure = format!("{name} page, {pods} pods");
            figures.add(&format!("{figure}, p50"), cost.p50, Unit::Milliseconds, "");
            figures.add(&format!("{figure}, CPU"), cost.cpu, Unit::Milliseconds, "");
        }
        let all = PAGES.map(|(_, path)| path);
        let cost = scrape(&node, pid, &all).await.above(idle);
        let target = if pods == 110 { "<= 30 ms" } else { "" };
        let figure = format!("all three pages, {pods} pods, CPU");
        figures.add(&figure, cost.cpu, Unit::Milliseconds, target);
        let figure = format!("kubelet memory (RSS), {pods} pods, scraped");
        figures.add(&figure, rss(pid).unwrap(), Unit::Mebibytes, "");
    }
}

/// What one scrape costs, in milliseconds.
struct Cost {
    p50: f64,
    /// CPU time of the kubelet in a period.
    cpu: f64,
}

impl Cost {
    /// Without what the kubelet uses when it is idle.
    fn above(self, idle: f64) -> Self {
        Self {
            cpu: self.cpu - idle,
            ..self
        }
    }
}

async fn scrape(node: &Node, pid: u32, paths: &[&str]) -> Cost {
    let scrapes = size::amount("BENCH_SCRAPES", SCRAPES);
    let used = cpu(pid).unwrap();
    let mut times = Vec::new();
    for _ in 0..scrapes {
        let begun = Instant::now();
        for path in paths {
            assert!(!node.page(path).await.unwrap().is_empty());
        }
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PERIOD).await;
    }
    Cost {
        p50: median(&mut times),
        cpu: (cpu(pid).unwrap() - used) * 1e3 / scrapes as f64,
    }
}

fn manifest(n: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{n}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    \
         image: e2e.local/busybox:1\n    command: [sleep, '100000']\n    \
         resources: {{requests: {{cpu: 1m, memory: 1Mi}}, limits: {{cpu: 100m, memory: 32Mi}}}}\n"
    )
}
