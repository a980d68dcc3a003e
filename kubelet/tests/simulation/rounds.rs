//! One class of faults at a time, on converged pods, and the shortest time in which each must be
//! healed. The periodic sync of a pod comes every 60 to 90 s: a class with a shorter time detects a
//! lost wake-up.

use std::time::Duration;

use fake_runtime::{Fault, Times, Verb};
use kubelet::sources::update::{PodOperation, Source};
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::{
    cluster::Cluster,
    driver::Simulation,
    pods::{self, Expect},
    simulated_pod::SimulatedPod,
};

/// Classes per seed.
const ROUNDS: usize = 5;
/// The most pods disturbed in one round.
const TARGETS: usize = 6;

/// From a change in the runtime to the sync of its pod: immediate with an event; without events the
/// relist comes within a second.
const NOTICED: Duration = Duration::from_secs(1);
/// A failed sync, status read or list is retried after one second plus up to half of jitter.
const RETRY: Duration = Duration::from_millis(1500);
/// From the start of a container to its readiness. Startup probes wait for their period, five
/// seconds at most; readiness is probed as soon as they succeed.
const READY: Duration = Duration::from_secs(5);
/// The longest grace period.
const GRACE: Duration = Duration::from_secs(8);
/// The minimum of each container, even after the grace period.
const MINIMUM_GRACE: Duration = Duration::from_secs(2);
/// The first back-off of a pull plus up to half of jitter.
const PULL: Duration = Duration::from_secs(15);
/// At most four failures of a probe, five seconds apart.
const PROBES: Duration = Duration::from_secs(20);
/// The longest run of a container of a job.
const JOB: Duration = Duration::from_secs(4);
/// The relist interval while events are trusted.
const SLOW_LIST: Duration = Duration::from_secs(30);

/// How long the API server is down.
const AWAY: Duration = Duration::from_secs(20);
/// Requests to the API server whose answers are lost.
const LOST_REQUESTS: usize = 3;
/// The delay of the objects that pods need.
const LATE: Duration = Duration::from_secs(10);
/// The longest retry interval of a failing sync, with up to half of jitter.
const SYNC_RETRY: Duration = Duration::from_secs(15);
/// The same for requests to the API server.
const SERVER_RETRY: Duration = Duration::from_secs(45);

/// A fault or an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Containers crash.
    Crash,
    /// Sandboxes end.
    SandboxEnd,
    /// Containers crash, and three lists fail.
    FailedLists,
    /// Containers crash, and one creation and one start fail.
    FailedCalls,
    /// Containers crash, and the answers to one creation and one start are lost.
    LostAnswers,
    /// Containers crash, and one start hangs.
    Hang,
    /// Containers crash, and one start takes effect but never returns.
    HangAfter,
    /// Pods are added, and one pull fails.
    FailedPulls,
    /// Liveness and readiness probes fail for a while.
    FailedProbes,
    /// The kubelet is killed.
    KubeletKill,
    /// Containers crash, and their events are lost.
    LostEvents,
    /// The event stream breaks, and containers crash.
    BrokenEvents,
    /// Pods are removed.
    Removal,
    /// Pods are marked for deletion.
    Deletion,
    /// A container's image changes.
    Edit,
    /// Pods are removed while containers terminate because their image changed.
    EditedRemoval,
    /// Sandboxes of new jobs end.
    JobSandboxEnd,
    /// The node is filled.
    FullNode,
    /// A pod gets a debug container.
    Debug,
    /// A pod is resized.
    Resize,
    /// A pod gets a CPU of its own, and the kubelet is killed.
    OwnCpu,
    /// While the API server is down, containers crash, a pod is removed and a static pod is added.
    ServerAway,
    /// Containers crash, and the answers to some requests to the API server are lost.
    LostRequests,
    /// Pods are added whose objects are created later.
    LateNeeds,
}

const CLASSES: &[Class] = &[
    Class::Crash,
    Class::SandboxEnd,
    Class::FailedLists,
    Class::FailedCalls,
    Class::LostAnswers,
    Class::Hang,
    Class::HangAfter,
    Class::FailedPulls,
    Class::FailedProbes,
    Class::KubeletKill,
    Class::LostEvents,
    Class::BrokenEvents,
    Class::Removal,
    Class::Deletion,
    Class::Edit,
    Class::EditedRemoval,
    Class::JobSandboxEnd,
    Class::FullNode,
    Class::Debug,
    Class::Resize,
    Class::OwnCpu,
    Class::ServerAway,
    Class::LostRequests,
    Class::LateNeeds,
];

impl Class {
    /// The time within which the state must converge.
    fn heals(self, simulation: &Simulation) -> Duration {
        let options = &simulation.node.options;
        // The back-off starts when the exit is noticed, regardless of the number of attempts.
        let restart = NOTICED + options.restart_delays.longest + READY;
        match self {
            Self::Crash | Self::SandboxEnd => restart,
            // Each failure is retried after its own delay, which doubles.
            Self::FailedLists => restart + 3 * RETRY,
            Self::FailedCalls | Self::LostAnswers => restart + 3 * RETRY,
            Self::Hang | Self::HangAfter => restart + options.cri.request_timeout + RETRY,
            Self::FailedPulls => PULL + NOTICED + READY,
            // The containers are stopped within their grace period and started again.
            Self::FailedProbes => GRACE + restart,
            // The new kubelet asks for the runtime's status, receives its pods within 2.5 s and
            // starts each probe at a random time within its period.
            Self::KubeletKill => RETRY + Duration::from_millis(2500) + 2 * READY,
            // The next relist shows it, before the pod's periodic sync.
            Self::LostEvents => SLOW_LIST + restart,
            // Once the stream is back, a list shows the missed changes.
            Self::BrokenEvents => RETRY + restart,
            // All containers together, then up to two sidecars, which get the minimum even after
            // the grace period.
            Self::Removal | Self::Deletion | Self::EditedRemoval => {
                NOTICED + GRACE + 2 * MINIMUM_GRACE
            }
            Self::Edit => GRACE + restart,
            // The jobs fail twice at most.
            Self::JobSandboxEnd => 3 * (restart + JOB),
            // Lists, watches and status updates are retried with growing delays.
            Self::ServerAway => restart + SERVER_RETRY,
            // Retries after one, two and four seconds.
            Self::LostRequests => restart + 7 * RETRY,
            // A failed sync is retried with growing delays.
            Self::LateNeeds => SYNC_RETRY + READY,
            // These check the result themselves.
            Self::FullNode | Self::Debug | Self::Resize | Self::OwnCpu => NOTICED,
        }
    }

    /// Whether the class needs an API server.
    const fn is_of_cluster(self) -> bool {
        matches!(
            self,
            Self::ServerAway | Self::LostRequests | Self::LateNeeds
        )
    }

    /// Whether the class needs pods from the API server.
    const fn is_of_api(self) -> bool {
        matches!(self, Self::Deletion | Self::Edit | Self::EditedRemoval)
    }
}

/// Whether the pod keeps running, is restarted, and has no init containers, whose duration is
/// unbounded.
fn is_server(subject: &SimulatedPod) -> bool {
    let spec = subject.spec();
    subject.present
        && !subject.deleting
        && !subject.is_evicted()
        && subject.expect == Expect::Runs
        && spec.restart_policy.as_deref() == Some("Always")
        && subject.init_containers() == 0
}

impl Simulation {
    /// Runs some classes of faults, each on converged pods.
    pub(crate) async fn rounds(&mut self) {
        let mut classes = CLASSES.to_vec();
        classes.retain(|class| self.node.cluster.is_some() || !class.is_of_cluster());
        for _ in 0..ROUNDS {
            let chosen = usize::try_from(self.random.below(classes.len() as u64)).unwrap();
            let class = classes.swap_remove(chosen);
            self.round(class).await;
        }
    }

    async fn round(&mut self, class: Class) {
        self.node.trace.note(format!("a round of {class:?}"), &[]);
        let targets = self.targets(|subject| {
            is_server(subject) && (!class.is_of_api() || subject.source == Source::Api)
        });
        // The next kubelet runs the static pods that this one refused, from the start.
        let has_refused = self.subjects.iter().any(SimulatedPod::is_evicted);
        let runtime = self.node.runtime.clone();
        let away = || Status::unavailable("the engine is away");
        match class {
            Class::Crash => {}
            Class::SandboxEnd => self.end_sandboxes(&targets),
            Class::FailedLists => {
                for verb in [Verb::ListPodSandbox, Verb::ListContainers] {
                    runtime.fault(verb, Fault::Error(away()), Times::N(3));
                }
            }
            Class::FailedCalls | Class::LostAnswers => {
                let fault = match class {
                    Class::FailedCalls => Fault::Error(away()),
                    _ => Fault::ErrorAfter(away()),
                };
                for verb in [Verb::CreateContainer, Verb::StartContainer] {
                    runtime.fault(verb, fault.clone(), Times::Once);
                }
            }
            Class::Hang => runtime.fault(Verb::StartContainer, Fault::Hang, Times::Once),
            Class::HangAfter => runtime.fault(Verb::StartContainer, Fault::HangAfter, Times::Once),
            Class::FailedPulls => {
                runtime.fault(Verb::PullImage, Fault::Error(away()), Times::Once);
                for _ in 0..TARGETS {
                    self.add_server().await;
                }
            }
            Class::FailedProbes => self.fail_probes().await,
            Class::KubeletKill => self.restart().await,
            Class::LostEvents => runtime.mute_events(true),
            Class::BrokenEvents => runtime.break_events(),
            Class::Removal => self.do_to(&targets, PodOperation::Remove).await,
            Class::Deletion => self.do_to(&targets, PodOperation::Delete).await,
            Class::Edit => self.do_to(&targets, PodOperation::Update).await,
            Class::EditedRemoval => {
                self.do_to(&targets, PodOperation::Update).await;
                // Some have terminated by the time the pods are removed.
                sleep(Duration::from_millis(1200)).await;
                self.do_to(&targets, PodOperation::Remove).await;
            }
            Class::JobSandboxEnd => self.end_sandboxes_of_jobs().await,
            Class::FullNode => self.fill().await,
            Class::Debug => self.debug().await,
            Class::Resize => self.resize().await,
            Class::OwnCpu => self.give_cpu().await,
            Class::ServerAway => self.be_away(&targets).await,
            Class::LostRequests => self.cluster().lose(LOST_REQUESTS),
            Class::LateNeeds => {
                for _ in 0..TARGETS {
                    self.add_needy(LATE).await;
                }
                sleep(LATE).await;
                self.cluster().bring_due();
            }
        }
        if matches!(
            class,
            Class::Crash
                | Class::FailedLists
                | Class::FailedCalls
                | Class::LostAnswers
                | Class::Hang
                | Class::HangAfter
                | Class::LostEvents
                | Class::BrokenEvents
                | Class::LostRequests
        ) {
            self.crash_all(&targets);
        }
        let begun = Instant::now();
        let mut limit = class.heals(self);
        if class == Class::KubeletKill && has_refused {
            limit += Class::JobSandboxEnd.heals(self);
        }
        sleep(limit).await;
        // Faults that no call has consumed.
        runtime.clear_faults();
        runtime.mute_events(false);
        if let Some(cluster) = &self.node.cluster {
            cluster.server.intercept(None);
        }
        if class == Class::Crash {
            self.calm.push(begun..Instant::now());
        }
        self.observe();
        if let Some(problem) = self.problem() {
            panic!("{limit:?} after {class:?}: {problem}");
        }
    }

    /// Some random pods.
    fn targets(&mut self, wanted: impl Fn(&SimulatedPod) -> bool) -> Vec<usize> {
        let all = 0..self.subjects.len();
        let mut all: Vec<usize> = all.filter(|index| wanted(&self.subjects[*index])).collect();
        while all.len() > TARGETS {
            let left_out = self.random.below(all.len() as u64);
            all.swap_remove(usize::try_from(left_out).unwrap());
        }
        all
    }

    fn crash_all(&mut self, targets: &[usize]) {
        for index in targets {
            let name = pods::containers(&self.subjects[*index].pod).next();
            let name = name.unwrap().name.clone();
            self.node.runtime.exit_container(&name, 1);
            self.subjects[*index].disturbed = true;
        }
    }

    fn end_sandboxes(&mut self, targets: &[usize]) {
        for index in targets {
            let subject = &mut self.subjects[*index];
            subject.disturbed = true;
            self.node.runtime.exit_sandboxes_of(&subject.uid);
        }
    }

    async fn end_sandboxes_of_jobs(&mut self) {
        let first = self.subjects.len();
        for _ in 0..TARGETS {
            self.add_job().await;
        }
        // Some of their containers have finished.
        sleep(JOB / 2).await;
        let jobs: Vec<usize> = (first..self.subjects.len()).collect();
        self.end_sandboxes(&jobs);
    }

    async fn be_away(&mut self, targets: &[usize]) {
        self.cluster().server.set_available(false);
        self.crash_all(targets);
        let of_api = |index: &&usize| self.subjects[**index].source == Source::Api;
        if let Some(index) = targets.iter().find(of_api).copied() {
            self.remove_one(index).await;
        }
        // The pod needs a mirror.
        self.add_sized(Source::File, 0).await;
        sleep(AWAY).await;
        // Changes during the outage can only be found by a list.
        self.cluster().server.compact();
        self.cluster().server.set_available(true);
    }

    fn cluster(&mut self) -> &mut Cluster {
        self.node.cluster.as_mut().unwrap()
    }

    async fn do_to(&mut self, targets: &[usize], operation: PodOperation) {
        for index in targets {
            match operation {
                PodOperation::Remove => self.remove_one(*index).await,
                PodOperation::Delete => self.delete_one(*index).await,
                _ => self.change_image(*index).await,
            }
        }
    }

    /// Makes all probes of some containers fail. A container with a liveness probe is stopped after
    /// enough failures; one with a readiness probe becomes unready.
    async fn fail_probes(&mut self) {
        let probed = self.targets(|subject| {
            let mut containers = pods::containers(&subject.pod);
            is_server(subject) && containers.any(|container| container.liveness_probe.is_some())
        });
        let names = probed.iter().flat_map(|index| {
            let containers = pods::containers(&self.subjects[*index].pod);
            containers.filter(|container| container.liveness_probe.is_some())
        });
        let names: Vec<String> = names.map(|container| container.name.clone()).collect();
        for index in probed {
            self.subjects[index].disturbed = true;
        }
        for name in &names {
            self.node.failing.flip(name);
        }
        let begun = Instant::now();
        sleep(PROBES + NOTICED).await;
        let lives = self.node.runtime.histories();
        for name in &names {
            let mut stops = lives
                .iter()
                .filter(|life| life.name == *name)
                .flat_map(|life| life.stops());
            assert!(
                stops.any(|(at, _)| at >= begun),
                "{name} was not stopped {:?} after its probes began to fail:\n{}",
                begun.elapsed(),
                self.node.trace.about(name),
            );
        }
        self.node.failing.end();
    }
}
