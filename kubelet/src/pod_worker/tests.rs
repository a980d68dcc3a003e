use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_host::repeatable;
use kubelet_pod_spec::identity::{CONFIG_SOURCE, PodUid};
use kubelet_runtime::pod_state::{PodState, RestartDelays};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Kill, PodSyncer, PodWorkers, SyncOutcome, WorkerError, WorkerPod};
use crate::status::Verdict;

const SECOND: Duration = Duration::from_secs(1);

/// The outcome of the next sync; syncs succeed by default.
enum Next {
    Panic,
    Fail,
    Hang,
    /// Blocks a thread until this is closed.
    Files(mpsc::Receiver<()>),
    Done,
}

/// Records the operations of workers.
#[derive(Default)]
struct Scripted {
    log: Mutex<Vec<(Instant, String)>>,
    script: Mutex<VecDeque<(&'static str, Next)>>,
    termination: Mutex<Duration>,
    /// Resource version of the pod that was synced last.
    version: Mutex<String>,
}

impl Scripted {
    fn note(&self, what: &str, uid: &PodUid) {
        self.log
            .lock()
            .push((Instant::now(), format!("{what} {uid}")));
    }

    /// The operations, without the times.
    fn log(&self) -> Vec<String> {
        self.log
            .lock()
            .iter()
            .map(|(_, what)| what.clone())
            .collect()
    }

    fn next_of(&self, uid: &PodUid) -> Option<Next> {
        let mut script = self.script.lock();
        let index = script.iter().position(|(pod, _)| *pod == uid.as_str())?;
        script.remove(index).map(|(_, next)| next)
    }
}

impl PodSyncer for Scripted {
    async fn status(&self, _: &PodUid, _: Option<Instant>) -> Result<Arc<PodStatus>, WorkerError> {
        Ok(Arc::default())
    }

    async fn sync_pod(
        &self,
        pod: Arc<Pod>,
        _: Arc<PodStatus>,
        _: Arc<PodState>,
    ) -> Result<SyncOutcome, WorkerError> {
        let uid = PodUid::of(&pod);
        if let Some(version) = &pod.metadata.resource_version {
            self.version.lock().clone_from(version);
        }
        self.note("sync", &uid);
        match self.next_of(&uid) {
            None => Ok(SyncOutcome::default()),
            Some(Next::Panic) => panic!("on purpose"),
            Some(Next::Fail) => Err("on purpose".into()),
            Some(Next::Hang) => std::future::pending().await,
            Some(Next::Files(work)) => {
                let worked = repeatable::blocking(move || work.recv().is_err()).await;
                worked.map(|_| SyncOutcome::default()).map_err(Into::into)
            }
            Some(Next::Done) => Ok(SyncOutcome {
                terminal: true,
                ..SyncOutcome::default()
            }),
        }
    }

    async fn terminate_pod(
        &self,
        subject: WorkerPod,
        _: Arc<PodStatus>,
        kill: Option<Kill>,
    ) -> Result<(), WorkerError> {
        self.note("terminate", &subject.uid);
        let grace = kill.and_then(|kill| kill.grace);
        let longest = *self.termination.lock();
        tokio::time::sleep(grace.map_or(longest, |grace| grace.min(longest))).await;
        Ok(())
    }

    async fn settle_pod(
        &self,
        subject: WorkerPod,
        _: Arc<PodStatus>,
        _: Option<Verdict>,
    ) -> Result<(), WorkerError> {
        self.note("settle", &subject.uid);
        Ok(())
    }

    async fn remove_pod(
        &self,
        subject: WorkerPod,
        _: Arc<PodStatus>,
        _: bool,
    ) -> Result<(), WorkerError> {
        self.note("remove", &subject.uid);
        Ok(())
    }
}

fn pod(name: &str, uid: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.annotations = Some([(CONFIG_SOURCE.to_owned(), "file".to_owned())].into());
    pod.spec = Some(PodSpec {
        termination_grace_period_seconds: Some(30),
        ..PodSpec::default()
    });
    Arc::new(pod)
}

fn workers() -> (Arc<Scripted>, PodWorkers<Scripted>) {
    let syncer = Arc::<Scripted>::default();
    let workers = PodWorkers::new(
        Arc::clone(&syncer),
        60 * SECOND,
        RestartDelays::default(),
        CancellationToken::new(),
    );
    (syncer, workers)
}

const DELETED: Kill = Kill {
    grace: None,
    deleted: true,
    verdict: None,
};

#[tokio::test(start_paused = true)]
async fn a_panic_costs_one_pod_one_sync() {
    let (syncer, workers) = workers();
    syncer.script.lock().push_back(("bad", Next::Panic));
    workers.update(&pod("a", "bad"));
    workers.update(&pod("b", "good"));
    tokio::time::sleep(5 * SECOND).await;
    let count = |what: &str| syncer.log().iter().filter(|entry| *entry == what).count();
    assert_eq!(count("sync bad"), 2);
    assert_eq!(count("sync good"), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_ever_later() {
    let (syncer, workers) = workers();
    for _ in 0..6 {
        syncer.script.lock().push_back(("1", Next::Fail));
    }
    workers.update(&pod("a", "1"));
    tokio::time::sleep(70 * SECOND).await;
    let log = syncer.log.lock();
    let gaps: Vec<f32> = log
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0).as_secs_f32())
        .collect();
    for (gap, delay) in gaps.iter().zip([1.0, 2.0, 4.0, 8.0, 10.0, 10.0]) {
        assert!((delay..=delay * 1.51).contains(gap), "{gaps:?}");
    }
    assert!(gaps.len() >= 6);
}

#[tokio::test(start_paused = true)]
async fn a_removed_pod_is_ended_even_from_a_sync_that_hangs() {
    let (syncer, workers) = workers();
    syncer.script.lock().push_back(("1", Next::Hang));
    let pod = pod("a", "1");
    workers.update(&pod);
    tokio::time::sleep(SECOND).await;
    workers.kill(&PodUid::of(&pod), DELETED);
    workers.sync(&PodUid::of(&pod));
    tokio::time::sleep(SECOND).await;
    assert_eq!(
        syncer.log(),
        ["sync 1", "terminate 1", "settle 1", "remove 1"]
    );
    workers.reap(Instant::now());
    assert!(!workers.is_known(&PodUid::of(&pod)));
}

/// Lets tasks and threads run until a condition holds. Measures real time: some tests pause the
/// runtime's clock.
async fn until(holds: impl Fn() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "real time is meant")]
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never holds");
        tokio::task::yield_now().await;
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn the_clean_up_waits_for_file_work_of_a_sync_that_was_given_up() {
    let (syncer, workers) = workers();
    let (work, ended) = mpsc::channel();
    syncer.script.lock().push_back(("1", Next::Files(ended)));
    let pod = pod("a", "1");
    workers.update(&pod);
    until(|| syncer.log() == ["sync 1"]).await;
    workers.kill(&PodUid::of(&pod), DELETED);
    until(|| syncer.log() == ["sync 1", "terminate 1"]).await;
    until(|| workers.has_ended(&PodUid::of(&pod))).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(syncer.log(), ["sync 1", "terminate 1"]);
    drop(work);
    until(|| syncer.log().last().unwrap() == "remove 1").await;
}

#[tokio::test(start_paused = true)]
async fn file_work_that_hangs_holds_up_nothing_for_ever() {
    let (syncer, workers) = workers();
    let (hung, ended) = mpsc::channel();
    syncer.script.lock().push_back(("1", Next::Files(ended)));
    let pod = pod("a", "1");
    workers.update(&pod);
    until(|| syncer.log() == ["sync 1"]).await;
    workers.kill(&PodUid::of(&pod), DELETED);
    until(|| workers.has_ended(&PodUid::of(&pod))).await;
    // The paused clock does not advance while a blocking thread works.
    tokio::time::advance(60 * SECOND).await;
    until(|| syncer.log().last().unwrap() == "remove 1").await;
    drop(hung);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_of_a_spec_is_slept_over() {
    let (syncer, workers) = workers();
    let uid = PodUid::from("1");
    for version in 0..20_000 {
        let mut newer = Pod::clone(&pod("a", "1"));
        newer.metadata.resource_version = Some(version.to_string());
        // A sync for another reason at the same time.
        workers.sync(&uid);
        workers.update(&Arc::new(newer));
        let synced = || *syncer.version.lock() == version.to_string();
        let limit = tokio::time::timeout(20 * SECOND, until(synced)).await;
        assert!(limit.is_ok(), "version {version} was slept over");
    }
}

#[tokio::test(start_paused = true)]
async fn an_edited_pod_waits_for_its_predecessor() {
    let (syncer, workers) = workers();
    *syncer.termination.lock() = 20 * SECOND;
    let (old, new) = (pod("a", "old"), pod("a", "new"));
    workers.update(&old);
    tokio::time::sleep(SECOND).await;
    workers.kill(&PodUid::of(&old), DELETED);
    workers.update(&new);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(syncer.log(), ["sync old", "terminate old"]);
    tokio::time::sleep(11 * SECOND).await;
    let log = syncer.log();
    assert!(log.contains(&"settle old".to_owned()) && log.contains(&"sync new".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_period_takes_effect_at_once() {
    let (syncer, workers) = workers();
    *syncer.termination.lock() = 100 * SECOND;
    let pod = pod("a", "1");
    workers.update(&pod);
    tokio::time::sleep(SECOND).await;
    workers.kill(&PodUid::of(&pod), DELETED);
    tokio::time::sleep(SECOND).await;
    let short = Kill {
        grace: Some(5 * SECOND),
        ..Kill::default()
    };
    workers.kill(&PodUid::of(&pod), short);
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(syncer.log().last().unwrap(), "remove 1");
}

#[tokio::test(start_paused = true)]
async fn a_done_pod_stays_done_until_it_is_removed() {
    let (syncer, workers) = workers();
    syncer.script.lock().push_back(("1", Next::Done));
    let pod = pod("a", "1");
    workers.update(&pod);
    tokio::time::sleep(300 * SECOND).await;
    workers.update(&pod);
    tokio::time::sleep(SECOND).await;
    assert_eq!(syncer.log(), ["sync 1", "terminate 1", "settle 1"]);
    workers.kill(&PodUid::of(&pod), DELETED);
    tokio::time::sleep(SECOND).await;
    assert_eq!(syncer.log().last().unwrap(), "remove 1");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_is_started_again() {
    let (syncer, workers) = workers();
    *syncer.termination.lock() = 5 * SECOND;
    let pod = pod("a", "1");
    workers.update(&pod);
    tokio::time::sleep(SECOND).await;
    workers.kill(&PodUid::of(&pod), DELETED);
    tokio::time::sleep(SECOND).await;
    workers.update(&pod);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(
        syncer.log(),
        ["sync 1", "terminate 1", "settle 1", "remove 1", "sync 1"]
    );
}
