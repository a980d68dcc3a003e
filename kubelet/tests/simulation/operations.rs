//! Operations on the pods and the machine of a run.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet::sources::update::{PodOperation, Source};
use tokio::time::{Instant, sleep};

use crate::{
    cpus,
    driver::{EPOCH, Simulation},
    faults,
    pods::{self, Kind, Planned},
    simulated_pod::SimulatedPod,
};

impl Simulation {
    /// The number of pods that the sources have.
    fn present(&self) -> usize {
        self.subjects
            .iter()
            .filter(|subject| subject.present)
            .count()
    }

    /// Performs a random operation.
    pub(crate) async fn act(&mut self) {
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
                self.outages.push(Instant::now());
                let lasting = faults::outage(&self.node.runtime, &mut self.random);
                sleep(lasting).await;
            }
            974..=976 => self.restart().await,
            977..=983 if self.node.cluster.is_some() => self.trouble().await,
            977..=983 => self.reconcile().await,
            984..=989 => sleep(self.random.millis(500, 4000)).await,
            990 => self.node.memory.become_scarce(),
            _ => self.flip_probes(),
        }
        if let Some(cluster) = &mut self.node.cluster {
            cluster.bring_due();
        }
        if self.random.permille(700) {
            sleep(self.random.millis(0, 50)).await;
        }
        if self.random.permille(200) {
            self.observe();
        }
    }

    pub(crate) async fn add(&mut self) {
        self.add_of(pods::KINDS).await;
    }

    /// Adds a pod that keeps running.
    pub(crate) async fn add_server(&mut self) {
        self.add_of(&[pods::server]).await;
    }

    /// Adds jobs.
    pub(crate) async fn add_job(&mut self) {
        self.add_of(&[pods::job]).await;
    }

    /// Adds a pod that requests `millis` thousandths of a CPU; returns its index.
    pub(crate) async fn add_sized(&mut self, source: Source, millis: i64) -> usize {
        let slot = self.generations.len();
        self.generations.push(0);
        let runtime = &self.node.runtime;
        let planned = pods::plan_sized(slot, source, millis, &mut self.random, runtime);
        let index = self.take(slot, planned);
        self.send(PodOperation::Add, index).await;
        index
    }

    /// Adds a pod of the API server that keeps running, on a CPU of its own.
    pub(crate) async fn add_with_own_cpu(&mut self) -> usize {
        let slot = self.generations.len();
        self.generations.push(0);
        let runtime = &self.node.runtime;
        let mut planned = pods::plan_sized(slot, Source::Api, 0, &mut self.random, runtime);
        cpus::give_one(&mut planned.pod);
        let index = self.take(slot, planned);
        self.send(PodOperation::Add, index).await;
        index
    }

    /// Adds a pod that keeps running and needs objects that are created after `after`.
    pub(crate) async fn add_needy(&mut self, after: Duration) {
        let slot = self.generations.len();
        self.generations.push(0);
        let runtime = &self.node.runtime;
        let mut planned = pods::plan_sized(slot, Source::Api, 0, &mut self.random, runtime);
        if let Some(cluster) = &mut self.node.cluster {
            cluster.give_needs(&mut planned.pod, after);
        }
        let index = self.take(slot, planned);
        self.send(PodOperation::Add, index).await;
    }

    async fn add_of(&mut self, kinds: &[Kind]) {
        let slot = self.generations.len();
        self.generations.push(0);
        let mut planned = pods::plan(slot, 0, kinds, &mut self.random, &self.node.runtime);
        if let Some(cluster) = &mut self.node.cluster
            && planned.source == Source::Api
            && self.random.permille(300)
        {
            let after = match cluster.well_since {
                None => self.random.of(&[0, 0, 100, 3000]),
                Some(_) => 0,
            };
            cluster.give_needs(&mut planned.pod, Duration::from_millis(after));
        }
        let index = self.take(slot, planned);
        self.send(PodOperation::Add, index).await;
    }

    fn take(&mut self, slot: usize, planned: Planned) -> usize {
        self.subjects.push(SimulatedPod::new(slot, planned));
        self.subjects.len() - 1
    }

    pub(crate) async fn send(&mut self, operation: PodOperation, index: usize) {
        let subject = &mut self.subjects[index];
        subject.note(operation);
        let (pod, source) = (subject.pod.clone(), subject.source);
        self.node
            .trace
            .note(format!("{operation:?} {}", subject.uid), &[]);
        match (&self.node.cluster, source) {
            (None, _) => self.kubelet.send(operation, source, vec![pod]).await,
            (Some(cluster), Source::Api) => cluster.tell(operation, &pod).await,
            (Some(_), _) => {
                let pods = self.pods_of(source);
                self.kubelet.set_static(pods).await;
            }
        }
    }

    /// The pods of a source.
    fn pods_of(&self, source: Source) -> Vec<Pod> {
        let subjects = self.subjects.iter();
        let present = subjects.filter(|s| s.present && s.source == source);
        present.map(|subject| subject.pod.clone()).collect()
    }

    /// A random pod that satisfies `wanted`, if the first few attempts find one.
    fn pick(&mut self, wanted: impl Fn(&SimulatedPod) -> bool) -> Option<usize> {
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

    /// Inverts the probe results of a random container with a liveness probe.
    fn flip_probes(&mut self) {
        let probed = |container: &&Container| container.liveness_probe.is_some();
        let wanted = |s: &SimulatedPod| s.present && pods::containers(&s.pod).any(|c| probed(&c));
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

    pub(crate) async fn remove(&mut self) {
        if let Some(index) = self.pick(|subject| subject.present) {
            self.remove_one(index).await;
        }
    }

    pub(crate) async fn remove_one(&mut self, index: usize) {
        self.subjects[index].present = false;
        self.send(PodOperation::Remove, index).await;
    }

    /// Marks a random pod for deletion.
    async fn delete(&mut self) {
        let wanted = |s: &SimulatedPod| s.present && !s.deleting && s.source == Source::Api;
        let Some(index) = self.pick(wanted) else {
            return;
        };
        self.delete_one(index).await;
    }

    pub(crate) async fn delete_one(&mut self, index: usize) {
        // The API server removes a pod with a grace period of 0 immediately.
        let least = u64::from(self.node.cluster.is_some());
        let grace = i64::try_from(self.random.between(least, 5)).unwrap();
        let subject = &mut self.subjects[index];
        subject.deleting = true;
        let metadata = &mut subject.pod.metadata;
        metadata.deletion_timestamp = Some(Time(Timestamp::from_second(EPOCH).unwrap()));
        metadata.deletion_grace_period_seconds = Some(grace);
        self.send(PodOperation::Delete, index).await;
    }

    /// Changes the image of a container or a label of the pod.
    async fn update(&mut self) {
        let wanted = |s: &SimulatedPod| s.present && !s.deleting && s.source == Source::Api;
        let Some(index) = self.pick(wanted) else {
            return;
        };
        if self.random.permille(700) {
            self.change_image(index).await;
            if self.random.permille(300) {
                // The old container may still be terminating.
                sleep(self.random.millis(1, 3000)).await;
                self.remove_one(index).await;
            }
            return;
        }
        let image = pods::image(&mut self.random);
        let labels = &mut self.subjects[index].pod.metadata.labels;
        let edited = image.replace(['/', ':'], "-");
        labels
            .get_or_insert_default()
            .insert("edited".to_owned(), edited);
        self.send(PodOperation::Update, index).await;
    }

    /// Changes the image of the pod's first container.
    pub(crate) async fn change_image(&mut self, index: usize) {
        let image = pods::image(&mut self.random);
        let subject = &mut self.subjects[index];
        subject.disturbed = true;
        let spec = subject.pod.spec.as_mut().unwrap();
        spec.containers[0].image = Some(image);
        self.send(PodOperation::Update, index).await;
    }

    /// Replaces a static pod, like an edited manifest.
    async fn replace(&mut self) {
        let Some(index) = self.pick(|s| s.present && s.source == Source::File) else {
            return;
        };
        let slot = self.subjects[index].slot;
        self.generations[slot] += 1;
        let generation = self.generations[slot];
        let planned = pods::plan(
            slot,
            generation,
            pods::KINDS,
            &mut self.random,
            &self.node.runtime,
        );
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

    /// Adds a removed pod again; it may still be terminating.
    async fn bring_back(&mut self) {
        // Recreation at an API server gives a new UID, so it is another pod.
        let alone = self.node.cluster.is_none();
        let wanted =
            |s: &SimulatedPod| !s.present && !s.deleting && (alone || s.source == Source::File);
        let Some(index) = self.pick(wanted) else {
            return;
        };
        let slot = self.subjects[index].slot;
        // The container behaviours are those of the newest generation.
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
    pub(crate) async fn restart(&mut self) {
        self.node.trace.note("the kubelet is killed", &[]);
        self.kills.push(Instant::now());
        let kubelet = self.node.start();
        std::mem::replace(&mut self.kubelet, kubelet).kill().await;
        for subject in &mut self.subjects {
            subject.status = None;
            // If the pod comes back during termination, the new kubelet finds it partly terminated
            // and does not know of the earlier life.
            subject.disturbed |= subject.came_back || !subject.present;
        }
        sleep(self.random.millis(0, 2000)).await;
        for source in [Source::File, Source::Api] {
            let pods = self.pods_of(source);
            if self.node.cluster.is_none() {
                self.kubelet.send(PodOperation::Add, source, pods).await;
            } else if source == Source::File {
                self.kubelet.set_static(pods).await;
            }
            sleep(self.random.millis(0, 500)).await;
        }
        self.kubelet.sources_are_read();
    }

    pub(crate) async fn remove_all(&mut self) {
        for index in 0..self.subjects.len() {
            if std::mem::take(&mut self.subjects[index].present) {
                self.send(PodOperation::Remove, index).await;
            }
        }
    }
}
