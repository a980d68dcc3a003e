//! Graceful node shutdown.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fake_runtime::{Behaviour, Fault, Times, Verb};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kubelet::kubelet::options::KubeletOptions;
use kubelet_api_client::events::EventRecorder;
use kubelet_node::{
    shutdown::{
        login_manager::{LoginManager, LoginManagerError, Session},
        order::ShutdownGracePeriod,
    },
    status_source::NodeStatusSource,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::node::{IMAGE, Node, SECOND, pod, until};

const CRITICAL: i32 = 2_000_000_000;

/// A login manager that the test controls.
#[derive(Clone)]
pub(crate) struct FakeLogin(Arc<Mutex<State>>);

struct State {
    is_away: bool,
    delay: Duration,
    /// Whether it grants the requested delay.
    obeys: bool,
    asked: Vec<Duration>,
    connects: usize,
    is_shutting_down: bool,
    locks: Arc<AtomicUsize>,
    sessions: Vec<mpsc::UnboundedSender<bool>>,
}

impl FakeLogin {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            is_away: false,
            delay: 5 * SECOND,
            obeys: true,
            asked: Vec::new(),
            connects: 0,
            is_shutting_down: false,
            locks: Arc::default(),
            sessions: Vec::new(),
        })))
    }

    /// Starts or cancels a shutdown.
    pub(crate) fn shut_down(&self, is_shutting_down: bool) {
        let mut state = self.0.lock();
        state.is_shutting_down = is_shutting_down;
        state
            .sessions
            .retain(|session| session.send(is_shutting_down).is_ok());
    }

    /// Whether an inhibitor lock is held.
    pub(crate) fn is_held_up(&self) -> bool {
        self.0.lock().locks.load(Ordering::Relaxed) > 0
    }

    /// Waits until an inhibitor lock is held.
    pub(crate) async fn until_held_up(&self) {
        until("a lock", 60 * SECOND, || self.is_held_up()).await;
    }

    fn leave(&self, is_away: bool) {
        let mut state = self.0.lock();
        state.is_away = is_away;
        state.sessions.clear();
    }
}

pub(crate) struct FakeSession {
    login: FakeLogin,
    signals: mpsc::UnboundedReceiver<bool>,
}

#[derive(Debug)]
pub(crate) struct FakeLock(Arc<AtomicUsize>);

impl Drop for FakeLock {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LoginManager for FakeLogin {
    type Session = FakeSession;

    async fn connect(&self) -> Result<FakeSession, LoginManagerError> {
        let mut state = self.0.lock();
        state.connects += 1;
        if state.is_away {
            return Err(LoginManagerError::Gone);
        }
        let (sender, signals) = mpsc::unbounded_channel();
        state.sessions.push(sender);
        Ok(FakeSession {
            login: self.clone(),
            signals,
        })
    }
}

impl Session for FakeSession {
    type Lock = FakeLock;

    async fn is_shutting_down(&self) -> Result<bool, LoginManagerError> {
        Ok(self.login.0.lock().is_shutting_down)
    }

    async fn delay(&self) -> Result<Duration, LoginManagerError> {
        Ok(self.login.0.lock().delay)
    }

    async fn set_delay(&self, delay: Duration) -> Result<(), LoginManagerError> {
        let mut state = self.login.0.lock();
        state.asked.push(delay);
        if state.obeys {
            let login = self.login.clone();
            // The change takes a while.
            tokio::spawn(async move {
                sleep(SECOND).await;
                login.0.lock().delay = delay;
            });
        }
        Ok(())
    }

    async fn inhibit(&self) -> Result<FakeLock, LoginManagerError> {
        let state = self.login.0.lock();
        if state.is_shutting_down {
            return Err(LoginManagerError::Restarted);
        }
        state.locks.fetch_add(1, Ordering::Relaxed);
        Ok(FakeLock(Arc::clone(&state.locks)))
    }

    async fn changed(&mut self) -> Result<bool, LoginManagerError> {
        self.signals.recv().await.ok_or(LoginManagerError::Gone)
    }
}

/// Options with a period of 20 seconds for pods of priority 0, and of 10 seconds for critical ones.
pub(crate) fn options(node: &Node) -> KubeletOptions {
    let of = |priority, seconds| ShutdownGracePeriod {
        priority,
        period: Duration::from_secs(seconds),
    };
    KubeletOptions {
        shutdown_grace_periods: vec![of(0, 20), of(CRITICAL, 10)],
        ..node.options()
    }
}

/// A pod with one container of the same name, and a grace period.
pub(crate) fn pod_of(name: &str, priority: i32, grace: u64) -> Pod {
    let container = json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    let spec = json!({
        "priority": priority, "terminationGracePeriodSeconds": grace, "containers": [container],
    });
    pod(name, name, spec)
}

/// The container exits this long after the stop signal; `None`: only when killed.
fn ends_after(node: &Node, container: &str, seconds: Option<u64>) {
    let behaviour = Behaviour {
        stops_after: seconds.map(Duration::from_secs),
        ..Behaviour::default()
    };
    node.runtime.behave(container, behaviour);
}

/// How many seconds after `begun` the container ends.
async fn runs_for(node: &Node, container: &str, begun: Instant) -> u64 {
    until(container, 60 * SECOND, || {
        node.runtime.running(container).is_empty()
    })
    .await;
    begun.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn pods_end_by_priority_each_in_its_time_and_hold_the_shutdown_up() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let kubelet = node.start_under(options(&node), login.clone());
    for (name, priority, grace, after) in [
        ("own", 0, 3, None),
        ("groups", 7, 600, None),
        ("quick", -1, 600, Some(1)),
        ("critical", CRITICAL + 1000, 600, Some(2)),
    ] {
        ends_after(&node, name, after);
        kubelet.add(pod_of(name, priority, grace)).await;
    }
    for name in ["own", "groups", "quick", "critical"] {
        kubelet.until_phase(name, "Running", 10 * SECOND).await;
    }
    login.until_held_up().await;
    let begun = Instant::now();
    login.shut_down(true);
    let runs_for = |name| runs_for(&node, name, begun);
    assert_eq!(runs_for("quick").await, 1);
    assert_eq!(runs_for("own").await, 3);
    assert_eq!(kubelet.phase("critical"), "Running");
    assert_eq!(runs_for("groups").await, 20);
    assert!(login.is_held_up());
    assert_eq!(runs_for("critical").await, 22);
    until("the shutdown to go on", SECOND, || !login.is_held_up()).await;
    let file = node.dir.path().join("kubelet/graceful_node_shutdown_state");
    let state: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let time = |field: &str| -> Timestamp { state[field].as_str().unwrap().parse().unwrap() };
    let took = time("endTime").duration_since(time("startTime")).as_secs();
    assert!((21..=23).contains(&took), "{took} s");
    for name in ["own", "groups", "quick", "critical"] {
        let status = kubelet.status(name);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(status.message.as_deref(), Some(message));
        let conditions = status.conditions.unwrap_or_default();
        let disruption = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
        let disruption = disruption.unwrap();
        assert_eq!(disruption.status, "True");
        assert_eq!(disruption.reason.as_deref(), Some("TerminationByKubelet"));
        assert_eq!(disruption.message.as_deref(), Some(message));
    }
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_end_holds_nothing_up_past_its_period() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let kubelet = node.start_under(options(&node), login.clone());
    kubelet.add(pod_of("a", 0, 5)).await;
    kubelet.add(pod_of("b", CRITICAL, 5)).await;
    kubelet.until_phase("a", "Running", 10 * SECOND).await;
    kubelet.until_phase("b", "Running", 10 * SECOND).await;
    login.until_held_up().await;
    node.runtime
        .fault(Verb::StopContainer, Fault::Hang, Times::Always);
    let begun = Instant::now();
    login.shut_down(true);
    until("the shutdown", 60 * SECOND, || !login.is_held_up()).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(node.runtime.running("a").len(), 1);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shuts_down_takes_no_pods_until_the_shutdown_is_cancelled() {
    let (mut node, login) = (Node::new(), FakeLogin::new());
    let (recorder, mut queue) = EventRecorder::new("node");
    node.events = recorder;
    let kubelet = node.start_under(options(&node), login.clone());
    login.until_held_up().await;
    assert!(!*kubelet.kubelet.shutting_down().borrow());
    login.shut_down(true);
    until("the shutdown", SECOND, || !login.is_held_up()).await;
    assert!(*kubelet.kubelet.shutting_down().borrow());
    assert_eq!(kubelet.kubelet.problems(), ["node is shutting down"]);
    kubelet.add(pod_of("late", CRITICAL, 5)).await;
    kubelet.until_phase("late", "Failed", SECOND).await;
    let status = kubelet.status("late");
    assert_eq!(status.reason.as_deref(), Some("NodeShutdown"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: Pod was rejected as the node is shutting down.")
    );

    login.shut_down(false);
    login.until_held_up().await;
    assert_eq!(kubelet.kubelet.problems(), Vec::<String>::new());
    kubelet.add(pod_of("next", 0, 5)).await;
    kubelet.until_phase("next", "Running", 10 * SECOND).await;
    let told: Vec<String> = std::iter::from_fn(|| queue.try_recv().ok())
        .filter(|event| event.reason.as_deref() == Some("Shutdown"))
        .filter_map(|event| event.message)
        .collect();
    assert_eq!(
        told,
        [
            "Shutdown manager detected shutdown event",
            "Shutdown manager detected shutdown cancellation"
        ]
    );
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_cancelled_ends_no_further_pods() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let kubelet = node.start_under(options(&node), login.clone());
    ends_after(&node, "low", None);
    kubelet.add(pod_of("low", 0, 15)).await;
    kubelet.add(pod_of("critical", CRITICAL, 5)).await;
    kubelet.until_phase("low", "Running", 10 * SECOND).await;
    kubelet
        .until_phase("critical", "Running", 10 * SECOND)
        .await;
    login.until_held_up().await;
    login.shut_down(true);
    sleep(5 * SECOND).await;
    login.shut_down(false);
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.phase("low"), "Failed");
    assert_eq!(kubelet.phase("critical"), "Running");
    assert!(login.is_held_up());
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_room_does_not_get_that_of_pods_that_end_with_the_node() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let mut options = options(&node);
    options.capacity.max_pods = 1;
    let kubelet = node.start_under(options, login.clone());
    ends_after(&node, "victim", Some(3));
    kubelet.add(pod_of("victim", 0, 15)).await;
    kubelet.until_phase("victim", "Running", 10 * SECOND).await;
    login.until_held_up().await;
    kubelet.add(pod_of("critical", CRITICAL, 5)).await;
    sleep(SECOND).await;
    login.shut_down(true);
    until("the shutdown", 60 * SECOND, || !login.is_held_up()).await;
    assert_eq!(
        kubelet.status("critical").reason.as_deref(),
        Some("Terminated")
    );
    assert_eq!(node.runtime.creations("critical", "critical"), 0);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_login_manager_that_was_away_is_found_again_with_what_it_does() {
    let (node, login) = (Node::new(), FakeLogin::new());
    login.leave(true);
    let kubelet = node.start_under(options(&node), login.clone());
    kubelet.add(pod_of("web", 0, 5)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    sleep(300 * SECOND).await;
    let connects = login.0.lock().connects;
    assert!((8..=20).contains(&connects), "{connects} in 300 s");
    login.leave(false);
    login.until_held_up().await;

    // The lock is released with the session, and a shutdown that began meanwhile is detected.
    login.leave(true);
    until("the lock's end", SECOND, || !login.is_held_up()).await;
    login.shut_down(true);
    login.leave(false);
    kubelet.until_phase("web", "Failed", 60 * SECOND).await;
    assert_eq!(kubelet.status("web").reason.as_deref(), Some("Terminated"));
    assert!(*kubelet.kubelet.shutting_down().borrow());
    login.leave(true);
    login.shut_down(false);
    login.leave(false);
    login.until_held_up().await;
    assert!(!*kubelet.kubelet.shutting_down().borrow());
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_end_in_their_time_though_the_login_manager_goes_away_meanwhile() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let kubelet = node.start_under(options(&node), login.clone());
    ends_after(&node, "web", None);
    kubelet.add(pod_of("web", 0, 15)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    login.until_held_up().await;
    login.shut_down(true);
    sleep(5 * SECOND).await;
    login.leave(true);
    sleep(5 * SECOND).await;
    assert!(login.is_held_up());
    until("the shutdown", 10 * SECOND, || !login.is_held_up()).await;
    assert!(node.runtime.running("web").is_empty());
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_login_manager_is_asked_for_as_much_time_as_pods_may_take() {
    for (delay, obeys, asked) in [
        (30 * SECOND, true, vec![]),
        (5 * SECOND, true, vec![30 * SECOND]),
        // A shorter delay is better than none.
        (5 * SECOND, false, vec![30 * SECOND]),
    ] {
        let (node, login) = (Node::new(), FakeLogin::new());
        {
            let mut state = login.0.lock();
            (state.delay, state.obeys) = (delay, obeys);
        }
        let kubelet = node.start_under(options(&node), login.clone());
        login.until_held_up().await;
        assert_eq!(login.0.lock().asked, asked);
        let expected = if obeys { 30 * SECOND } else { delay };
        assert_eq!(login.0.lock().delay, expected);
        kubelet.stop().await;
        assert!(!login.is_held_up());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_where_pods_get_no_time() {
    let (node, login) = (Node::new(), FakeLogin::new());
    let kubelet = node.start_under(node.options(), login.clone());
    kubelet.add(pod_of("web", 0, 5)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    assert_eq!(login.0.lock().connects, 0);
    kubelet.stop().await;
}
