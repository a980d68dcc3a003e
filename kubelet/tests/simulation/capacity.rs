//! Full nodes, debug containers, resizes and exclusive CPUs. They affect only pods of an API server; a static pod
//! preempts such a pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet::sources::update::{PodOperation, Source};
use kubelet_host::machine::Machine;
use kubelet_pod_spec::identity::PodUid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    cpus,
    driver::Simulation,
    pods::{self, Expect},
};

/// Pods that together take all of the node's CPUs.
const FILLERS: i64 = 4;
/// The interval at which the sync loop checks pods that wait for others to terminate.
const HOUSEKEEPING: Duration = Duration::from_secs(2);
/// The longest grace period plus the minimum of each container.
const ENDED: Duration = Duration::from_secs(10);
/// A kubelet that starts runs static pods again that it does not know. Some fail twice.
const RECOVERED: Duration = Duration::from_secs(180);
/// For operations that take no time of their own: a change is noticed within a second.
const PROMPT: Duration = Duration::from_secs(2);

impl Simulation {
    /// Fills the node. A pod that does not fit is rejected and never starts; a static pod preempts
    /// another one, which terminates within its grace period.
    pub(crate) async fn fill(&mut self) {
        let share = Machine::read().cpus * 1000 / FILLERS;
        let mut sized = Vec::new();
        for _ in 0..FILLERS {
            sized.push(self.add_sized(Source::Api, share).await);
        }
        sleep(PROMPT).await;
        self.assert_settled("the node was filled");

        let rejected = self.add_sized(Source::Api, share).await;
        self.subjects[rejected].expect = Expect::Fails;
        sleep(PROMPT).await;
        self.assert_settled("a pod came that does not fit");
        self.assert_reason(rejected, "OutOfcpu");
        let uid = self.subjects[rejected].uid.clone();
        let lives = self.node.runtime.histories();
        let began = lives.iter().filter(|life| life.pod_uid == uid).count();
        assert_eq!(began, 0, "{uid} was rejected, and has containers");

        let critical = self.add_sized(Source::File, share).await;
        sleep(ENDED + HOUSEKEEPING + PROMPT).await;
        let failed = |index: &usize| self.phase(*index).as_deref() == Some("Failed");
        let victims: Vec<usize> = sized.iter().copied().filter(failed).collect();
        assert_eq!(victims.len(), 1, "victims of one share: {victims:?}");
        self.subjects[victims[0]].expect = Expect::Fails;
        self.assert_settled("a critical pod came");
        self.assert_reason(victims[0], "Preempting");
        for index in sized.into_iter().chain([rejected, critical]) {
            self.remove_one(index).await;
        }
        sleep(ENDED + PROMPT).await;
        self.assert_settled("all that had filled the node was removed");
    }

    /// Gives a pod a debug container, which is never restarted.
    pub(crate) async fn debug(&mut self) {
        let index = self.add_sized(Source::Api, 1).await;
        sleep(PROMPT).await;
        let subject = &self.subjects[index];
        let (uid, name) = (subject.uid.clone(), format!("p{}-debug", subject.slot));
        let target = &subject.spec().containers[0].name;
        let container = json!({
            "name": name, "image": pods::image(&mut self.random), "targetContainerName": target,
        });
        self.change(index, "ephemeralContainers", json!([container]))
            .await;
        sleep(PROMPT).await;
        let ended = self.node.runtime.exit_container(&name, 1);
        assert_eq!(ended, 1, "{name} does not run");
        sleep(self.node.options.restart_delays.longest + PROMPT).await;
        assert_eq!(self.node.runtime.creations(&uid, &name), 1, "{name}");
        self.assert_settled("a debug container ended");
        self.remove_one(index).await;
        sleep(ENDED + PROMPT).await;
    }

    /// Resizes a pod: its running container gets the new CPU shares.
    pub(crate) async fn resize(&mut self) {
        let index = self.add_sized(Source::Api, 100).await;
        sleep(PROMPT).await;
        let mut containers = serde_json::to_value(&self.subjects[index].spec().containers).unwrap();
        containers[0]["resources"] = json!({"requests": {"cpu": "200m"}});
        let name = containers[0]["name"].as_str().unwrap().to_owned();
        self.change(index, "containers", containers).await;
        sleep(PROMPT).await;
        let running = self.node.runtime.running(&name);
        let linux = running[0].config.linux.as_ref().unwrap();
        let shares = linux.resources.as_ref().unwrap().cpu_shares;
        assert_eq!(shares, 200 * 1024 / 1000, "{name} was resized");
        assert_eq!(running[0].attempt(), 0, "{name} was restarted");
        self.assert_settled("a pod was resized");
        self.remove_one(index).await;
        sleep(ENDED + PROMPT).await;
    }

    /// Gives a pod a CPU that no other container uses, and takes it back. A restarted kubelet keeps
    /// it.
    pub(crate) async fn give_cpu(&mut self) {
        let index = self.add_with_own_cpu().await;
        sleep(PROMPT).await;
        self.assert_settled("a pod got a CPU of its own");
        self.restart().await;
        self.recover("the kubelet was restarted").await;
        self.remove_one(index).await;
        sleep(ENDED + self.node.options.cpu_reconcile_period + PROMPT).await;
        self.assert_settled("the pod with a CPU of its own was removed");
    }

    /// Waits until all invariants hold; the CPUs of containers have never changed until then.
    async fn recover(&mut self, after: &str) {
        let deadline = Instant::now() + RECOVERED;
        loop {
            sleep(PROMPT).await;
            self.observe();
            assert_eq!(cpus::problem(self), None, "after {after}");
            let Some(problem) = self.problem() else {
                return;
            };
            assert!(Instant::now() < deadline, "after {after}: {problem}");
        }
    }

    /// Changes one field of a pod's spec.
    async fn change(&mut self, index: usize, field: &str, value: Value) {
        let pod = &mut self.subjects[index].pod;
        let mut changed = serde_json::to_value(&*pod).unwrap();
        changed["spec"][field] = value;
        *pod = serde_json::from_value::<Pod>(changed).unwrap();
        self.send(PodOperation::Update, index).await;
    }

    fn status(&self, index: usize) -> Option<PodStatus> {
        let uid = PodUid::from(self.subjects[index].uid.as_str());
        let status = self.kubelet.kubelet.status(&uid)?;
        Some((*status).clone())
    }

    fn phase(&self, index: usize) -> Option<String> {
        self.status(index)?.phase
    }

    fn assert_reason(&self, index: usize, wanted: &str) {
        let reason = self.status(index).and_then(|status| status.reason);
        assert_eq!(
            reason.as_deref(),
            Some(wanted),
            "{}",
            self.subjects[index].uid
        );
    }

    fn assert_settled(&mut self, when: &str) {
        self.observe();
        if let Some(problem) = self.problem() {
            panic!("when {when}: {problem}");
        }
    }
}
