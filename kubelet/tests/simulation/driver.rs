//! A simulation run from start to end, and the statuses observed in it.

use std::{ops::Range, sync::Arc, time::Duration};

use fake_runtime::FakeRuntime;
use jiff::Timestamp;
use kubelet_host::repeatable::Repeatable;
use kubelet_pod_spec::identity::PodUid;
use test_run::random::Random;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{
    checks::{self, Panics},
    cluster::{self, Cluster},
    cpus, faults, history,
    node::{Node, Running},
    pods,
    simulated_pod::SimulatedPod,
    trace::Trace,
};

/// The wall-clock time at which every run begins: 2026-01-01.
pub(crate) const EPOCH: i64 = 1_767_225_600;
/// The time to converge once the runtime's faults are cleared. A pull that failed just before backs
/// off for up to five minutes, and once more if the next attempt exceeds the pull rate limit.
const SETTLED: Duration = Duration::from_secs(11 * 60);
/// Longer than any unused resource is kept.
const UNUSED: Duration = Duration::from_secs(10 * 60);
/// The interval between checks for convergence.
const LOOK: Duration = Duration::from_secs(4);
/// How long the converged state must last.
const CALM: Duration = Duration::from_secs(60);

/// One run.
pub(crate) struct Simulation {
    pub node: Node,
    pub kubelet: Running,
    pub subjects: Vec<SimulatedPod>,
    /// When kubelets were killed.
    pub kills: Vec<Instant>,
    /// When outages of the runtime began.
    pub outages: Vec<Instant>,
    /// Periods without faults, disturbances or recovery.
    pub calm: Vec<Range<Instant>>,
    pub random: Random,
    /// The most pods at the same time.
    pub room: usize,
    /// The number of generations of each name so far.
    pub generations: Vec<u32>,
}

/// Runs a seed with `pods` pods; panics if an invariant does not hold.
pub(crate) async fn simulate(seed: u64, pods: usize) -> Trace {
    let epoch = Timestamp::from_second(EPOCH).unwrap();
    let _repeatable = Repeatable::on_this_thread(seed, epoch);
    let panics = Panics::watch();
    let mut random = Random::new(seed, 1);
    let runtime = FakeRuntime::at(Duration::from_secs(EPOCH.unsigned_abs()));
    pods::add_images(&runtime);
    let cluster = (seed % 2 == 1).then(Cluster::new);
    let node = Node::new(runtime, cluster, &mut random);
    let kubelet = node.start();
    kubelet.sources_are_read();
    kubelet.set_static(Vec::new()).await;
    sleep(Duration::from_secs(3)).await;
    let idle_tasks = Handle::current().metrics().num_alive_tasks();

    // In every tenth seed all pods exist at once.
    let room = if seed % 10 == 9 {
        pods
    } else {
        random.of(&[40, 80, 120])
    };
    let mut simulation = Simulation {
        room,
        node,
        kubelet,
        subjects: Vec::new(),
        kills: Vec::new(),
        outages: Vec::new(),
        calm: Vec::new(),
        random,
        generations: Vec::new(),
    };
    faults::begin(&simulation.node.runtime, Random::new(seed, 2));
    if let Some(cluster) = &simulation.node.cluster {
        cluster.fail_by_chance(Random::new(seed, 3), simulation.node.trace.clone());
    }
    while simulation.subjects.len() < pods {
        simulation.act().await;
    }
    simulation.node.runtime.clear_faults();
    simulation.node.failing.end();
    if let Some(cluster) = &mut simulation.node.cluster {
        cluster.be_well();
    }
    simulation.node.memory.become_plentiful();
    simulation.settle("after the faults").await;
    simulation.rounds().await;
    simulation.remove_all().await;
    simulation.settle("after all pods were removed").await;
    // Removed containers end on their own in the fake runtime, and watches of pods' objects last a
    // while longer.
    sleep(UNUSED).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, idle_tasks, "seed {seed}: tasks without any pod");
    simulation.kubelet.kill().await;
    sleep(Duration::from_millis(1)).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "seed {seed}: tasks without a kubelet");
    panics.assert_none();
    simulation.node.trace
}

impl Simulation {
    /// Records the statuses that changed.
    pub(crate) fn observe(&mut self) {
        for subject in &mut self.subjects {
            let status = self
                .kubelet
                .kubelet
                .status(&PodUid::from(subject.uid.as_str()));
            let same = match (&status, &subject.status) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                (None, None) => true,
                _ => false,
            };
            if same {
                continue;
            }
            let detail = status.as_deref().map(checks::summary).unwrap_or_default();
            self.node
                .trace
                .note(format!("{} is {detail}", subject.uid), &[]);
            if let Some(status) = &status
                && !subject.came_back
            {
                for container in status.container_statuses.iter().flatten() {
                    let last = subject.restarts.entry(container.name.clone()).or_default();
                    assert!(
                        container.restart_count >= *last,
                        "{} was restarted {last} times, and then {}:\n{}",
                        container.name,
                        container.restart_count,
                        self.node.trace.about(&subject.uid)
                    );
                    *last = container.restart_count;
                }
            }
            subject.status = status;
        }
    }

    /// The first violated invariant.
    pub(crate) fn problem(&self) -> Option<String> {
        checks::problem(self)
            .or_else(|| cluster::problem(self))
            .or_else(|| cpus::problem(self))
    }

    /// Waits until all invariants hold, and checks that they keep holding.
    async fn settle(&mut self, when: &str) {
        let deadline = Instant::now() + SETTLED;
        loop {
            sleep(LOOK).await;
            self.observe();
            if let Some(cluster) = &mut self.node.cluster {
                cluster.bring_due();
            }
            let Some(problem) = self.problem() else {
                break;
            };
            assert!(
                Instant::now() < deadline,
                "{when}, {SETTLED:?} later: {problem}"
            );
        }
        let settled = Instant::now();
        sleep(CALM).await;
        self.calm.push(settled..Instant::now());
        self.observe();
        if let Some(problem) = self.problem() {
            panic!("{when}, after it had settled: {problem}");
        }
        if let Some(problem) = history::problem(self) {
            panic!("{when}: {problem}");
        }
    }
}
