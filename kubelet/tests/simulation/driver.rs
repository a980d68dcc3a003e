//! What is done to the pods of a simulation.

use std::{ops::Range, sync::Arc, time::Duration};

use e2e::fake_runtime::FakeRuntime;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet::{
    config::update::{PodOperation, Source},
    pod::identity::PodUid,
    repeatable::Repeatable,
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{
    checks::{self, Panics},
    faults, history,
    node::{Node, Running},
    pods::{self, Planned},
    random::Random,
    subject::Subject,
    trace::Trace,
};

/// Time of day at which every run begins: 2026-01-01.
const EPOCH: i64 = 1_767_225_600;
/// Within which everything is as it should be once the runtime fails no more. A pull
/// that failed just before waits for up to five minutes, and again if then it is one
/// too many.
const SETTLED: Duration = Duration::from_secs(11 * 60);
/// Between two looks at whether it is.
const LOOK: Duration = Duration::from_secs(4);
/// How long it is seen to stay so.
const CALM: Duration = Duration::from_secs(60);

/// One run.
pub struct Simulation {
    pub node: Node,
    pub kubelet: Running,
    pub subjects: Vec<Subject>,
    /// When a kubelet was killed.
    pub kills: Vec<Instant>,
    /// When nothing failed, was disturbed or was being healed.
    pub calm: Vec<Range<Instant>>,
    random: Random,
    /// Most pods at the same time.
    room: usize,
    /// Generations of each name so far.
    generations: Vec<u32>,
}

/// Runs a seed with so many pods to its end; panics where something is not as it
/// should be.
pub async fn simulate(seed: u64, pods: usize) -> Trace {
    let epoch = Timestamp::from_second(EPOCH).unwrap();
    let _repeatable = Repeatable::on_this_thread(seed, epoch);
    let panics = Panics::watch();
    let mut random = Random::new(seed, 1);
    let runtime = FakeRuntime::at(Duration::from_secs(EPOCH.unsigned_abs()));
    pods::add_images(&runtime);
    let node = Node::new(runtime, &mut random);
    let kubelet = node.start();
    kubelet.sources_are_read();
    sleep(Duration::from_secs(3)).await;
    let idle_tasks = Handle::current().metrics().num_alive_tasks();

    // Now and then all of them are there at once.
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
        calm: Vec::new(),
        random,
        generations: Vec::new(),
    };
    faults::begin(&simulation.node.runtime, Random::new(seed, 2));
    while simulation.subjects.len() < pods {
        simulation.act().await;
    }
    simulation.node.runtime.clear_faults();
    simulation.node.failing.end();
    simulation.settle("after the faults").await;
    simulation.remove_all().await;
    simulation.settle("after all pods were removed").await;
    // Containers that are gone end on their own in the fake runtime.
    sleep(Duration::from_secs(10)).await;
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
    /// How many pods the sources have.
    fn present(&self) -> usize {
        self.subjects
            .iter()
            .filter(|subject| subject.present)
            .count()
    }

    async fn act(&mut self) {
        match self.random.below(1000) {
            0..=399 if self.present() < self.room => self.add().await,
            0..=399 => self.remove().await,
            400..=599 => self.crash(),
            600..=679 => self.remove().await,
            680..=729 => self.delete().await,
            730..=809 => self.update().await,
            810..=869 => self.replace().await,
            870..=929 => self.bring_back().await,
            930..=969 => self.end_sandbox(),
            970..=973 => {
                let lasting = faults::outage(&self.node.runtime, &mut self.random);
                sleep(lasting).await;
            }
            974..=976 => self.restart().await,
            977..=983 => self.reconcile().await,
            984..=989 => sleep(self.random.millis(500, 4000)).await,
            _ => self.flip_probes(),
        }
        if self.random.permille(700) {
            sleep(self.random.millis(0, 50)).await;
        }
        if self.random.permille(200) {
            self.observe();
        }
    }

    // === what is done ===

    async fn add(&mut self) {
        let slot = self.generations.len();
        self.generations.push(0);
        let planned = pods::plan(slot, 0, &mut self.random, &self.node.runtime);
        let index = self.take(slot, planned);
        self.send(PodOperation::Add, index).await;
    }

    fn take(&mut self, slot: usize, planned: Planned) -> usize {
        self.subjects.push(Subject::new(slot, planned));
        self.subjects.len() - 1
    }

    async fn send(&mut self, operation: PodOperation, index: usize) {
        let subject = &mut self.subjects[index];
        subject.note(operation);
        let (pod, source) = (subject.pod.clone(), subject.source);
        self.node
            .trace
            .note(format!("{operation:?} {}", subject.uid), &[]);
        self.kubelet.send(operation, source, vec![pod]).await;
    }

    /// A pod by chance that fulfils a condition, if the first few tries find one.
    fn pick(&mut self, wanted: impl Fn(&Subject) -> bool) -> Option<usize> {
        let count = self.subjects.len() as u64;
        (0..8.min(count)).find_map(|_| {
            let index = usize::try_from(self.random.below(count)).unwrap();
            wanted(&self.subjects[index]).then_some(index)
        })
    }

    fn crash(&mut self) {
        let Some(index) = self.pick(|subject| subject.present) else {
            return;
        };
        let subject = &mut self.subjects[index];
        let containers = pods::containers(&subject.pod);
        let names: Vec<&str> = containers.map(|c| c.name.as_str()).collect();
        let code = self.random.of(&[0, 1, 137]);
        let name = self.random.of(&names);
        subject.disturbed |= self.node.runtime.exit_container(name, code) > 0;
    }

    /// Lets the probes of a container that has some find the opposite.
    fn flip_probes(&mut self) {
        let probed = |container: &&Container| container.liveness_probe.is_some();
        let wanted = |s: &Subject| s.present && pods::containers(&s.pod).any(|c| probed(&c));
        let Some(index) = self.pick(wanted) else {
            return;
        };
        let pod = &self.subjects[index].pod;
        let names: Vec<&str> = pods::containers(pod)
            .filter(probed)
            .map(|container| container.name.as_str())
            .collect();
        let name = self.random.of(&names);
        self.node.trace.note(format!("probes of {name} flip"), &[]);
        self.node.failing.flip(name);
    }

    fn end_sandbox(&mut self) {
        let Some(index) = self.pick(|subject| subject.present) else {
            return;
        };
        let subject = &mut self.subjects[index];
        subject.disturbed |= self.node.runtime.exit_sandboxes_of(&subject.uid) > 0;
    }

    async fn remove(&mut self) {
        if let Some(index) = self.pick(|subject| subject.present) {
            self.subjects[index].present = false;
            self.send(PodOperation::Remove, index).await;
        }
    }

    /// Marks a pod for deletion.
    async fn delete(&mut self) {
        let wanted = |s: &Subject| s.present && !s.deleting && s.source == Source::Api;
        let Some(index) = self.pick(wanted) else {
            return;
        };
        let grace = i64::try_from(self.random.between(0, 5)).unwrap();
        let subject = &mut self.subjects[index];
        subject.deleting = true;
        let metadata = &mut subject.pod.metadata;
        metadata.deletion_timestamp = Some(Time(Timestamp::from_second(EPOCH).unwrap()));
        metadata.deletion_grace_period_seconds = Some(grace);
        self.send(PodOperation::Delete, index).await;
    }

    /// Gives a container another image, or the pod another label.
    async fn update(&mut self) {
        let wanted = |s: &Subject| s.present && !s.deleting && s.source == Source::Api;
        let Some(index) = self.pick(wanted) else {
            return;
        };
        let image = pods::image(&mut self.random);
        let changes_image = self.random.permille(700);
        let subject = &mut self.subjects[index];
        if changes_image {
            subject.disturbed = true;
            let container = &mut subject.pod.spec.as_mut().unwrap().containers[0];
            container.image = Some(image);
        } else {
            let labels = subject.pod.metadata.labels.get_or_insert_default();
            labels.insert("edited".to_owned(), image.replace(['/', ':'], "-"));
        }
        self.send(PodOperation::Update, index).await;
    }

    /// Puts another static pod in the place of one: an edited manifest.
    async fn replace(&mut self) {
        let Some(index) = self.pick(|s| s.present && s.source == Source::File) else {
            return;
        };
        let slot = self.subjects[index].slot;
        self.generations[slot] += 1;
        let generation = self.generations[slot];
        let planned = pods::plan(slot, generation, &mut self.random, &self.node.runtime);
        self.subjects[index].present = false;
        let new = self.take(slot, planned);
        let mut steps = [(PodOperation::Remove, index), (PodOperation::Add, new)];
        if !self.random.permille(700) {
            steps.reverse();
        }
        for (operation, index) in steps {
            self.send(operation, index).await;
        }
    }

    /// Adds a pod again that was removed, perhaps while it is still ending.
    async fn bring_back(&mut self) {
        let Some(index) = self.pick(|subject| !subject.present && !subject.deleting) else {
            return;
        };
        let slot = self.subjects[index].slot;
        // The behaviours of its containers are the newest generation's.
        if self.generations[slot] > 0 {
            return;
        }
        let subject = &mut self.subjects[index];
        subject.present = true;
        subject.came_back = true;
        self.send(PodOperation::Add, index).await;
    }

    async fn reconcile(&mut self) {
        if let Some(index) = self.pick(|subject| subject.present) {
            self.send(PodOperation::Reconcile, index).await;
        }
    }

    /// Kills the kubelet and starts another one.
    async fn restart(&mut self) {
        self.node.trace.note("the kubelet is killed", &[]);
        self.kills.push(Instant::now());
        let kubelet = self.node.start();
        std::mem::replace(&mut self.kubelet, kubelet).kill().await;
        for subject in &mut self.subjects {
            subject.status = None;
            // What was ending when its pod comes back is found half ended by a kubelet
            // that does not know of an earlier life.
            subject.disturbed |= subject.came_back || !subject.present;
        }
        sleep(self.random.millis(0, 2000)).await;
        for source in [Source::File, Source::Api] {
            let present = self
                .subjects
                .iter()
                .filter(|s| s.present && s.source == source);
            let pods: Vec<Pod> = present.map(|subject| subject.pod.clone()).collect();
            self.kubelet.send(PodOperation::Add, source, pods).await;
            sleep(self.random.millis(0, 500)).await;
        }
        self.kubelet.sources_are_read();
    }

    async fn remove_all(&mut self) {
        for index in 0..self.subjects.len() {
            if std::mem::take(&mut self.subjects[index].present) {
                self.send(PodOperation::Remove, index).await;
            }
        }
    }

    // === what is seen ===

    /// Notes the statuses that changed.
    fn observe(&mut self) {
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

    /// Waits until everything is as it should be, and sees that it stays so.
    async fn settle(&mut self, when: &str) {
        let deadline = Instant::now() + SETTLED;
        loop {
            sleep(LOOK).await;
            self.observe();
            let Some(problem) = checks::problem(self) else {
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
        if let Some(problem) = checks::problem(self) {
            panic!("{when}, after it had settled: {problem}");
        }
        if let Some(problem) = history::problem(self) {
            panic!("{when}: {problem}");
        }
    }
}
