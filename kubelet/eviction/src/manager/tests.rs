mod reclaim;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;
use kubelet_api_client::events::EventQueue;
use kubelet_pod_spec::{amount_or_share::AmountOrShare, quantity::NANOS};
use kubelet_resource_analyzer::FileUsage;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::{
    host::Reclaim,
    observation::Observation,
    signal::Signal,
    usage::{ContainerUsage, PodUsage},
};

const NOBODY: [PodUid; 0] = [];

/// A node whose signals and pods are set, and which logs what is done to it.
#[derive(Debug, Default)]
struct FakeNode(Mutex<Fake>, Notify);

#[derive(Debug, Default)]
struct Fake {
    available: BTreeMap<Signal, u64>,
    layout: Layout,
    /// What each reclaim makes available.
    reclaimable: BTreeMap<&'static str, (Signal, u64)>,
    pods: Vec<Arc<Pod>>,
    usages: PodUsages,
    /// What a reclaim makes available some observations later.
    freed_later: Option<(u32, Signal, u64)>,
    /// What the eviction of a pod makes available.
    frees: Option<(Signal, u64)>,
    is_unobservable: bool,
    is_unmeasurable: bool,
    keeps_resources: bool,
    log: Vec<String>,
    evictions: Vec<Eviction>,
    observations: u32,
    marks: Vec<MemoryMark>,
}

impl EvictionHost for FakeNode {
    async fn observe(&self) -> Result<Observed, String> {
        let fake = &mut *self.0.lock();
        fake.observations += 1;
        if let Some((at, signal, bytes)) = fake.freed_later
            && fake.observations >= at
        {
            fake.available.insert(signal, bytes);
        }
        if fake.is_unobservable {
            return Err("no".to_owned());
        }
        let at = Timestamp::UNIX_EPOCH + Duration::from_secs(fake.observations.into());
        let observation = |available| Observation {
            available,
            capacity: 1000,
            at,
        };
        let signals = fake.available.iter();
        Ok(Observed {
            signals: signals
                .map(|(signal, it)| (*signal, observation(*it)))
                .collect(),
            layout: Some(fake.layout),
        })
    }

    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().pods.clone()
    }

    async fn usages(&self, depth: UsageDepth) -> Result<PodUsages, String> {
        let fake = &mut *self.0.lock();
        fake.log.push(format!("measure {depth:?}"));
        if fake.is_unmeasurable {
            return Err("no".to_owned());
        }
        Ok(fake.usages.clone())
    }

    async fn reclaim(&self, what: Reclaim) -> Result<bool, String> {
        let fake = &mut *self.0.lock();
        let name = match what {
            Reclaim::Containers => "containers",
            Reclaim::Images => "images",
        };
        fake.log.push(format!("reclaim {name}"));
        match fake.reclaimable.remove(name) {
            Some((signal, bytes)) => {
                *fake.available.entry(signal).or_default() += bytes;
                Ok(true)
            }
            None => Err("nothing to reclaim".to_owned()),
        }
    }

    async fn evict(&self, pod: &Arc<Pod>, eviction: Eviction) -> Result<(), String> {
        let fake = &mut *self.0.lock();
        fake.log.push(format!("evict {}", identity::name(pod)));
        fake.evictions.push(eviction);
        fake.pods
            .retain(|other| PodUid::of(other) != PodUid::of(pod));
        if let Some((signal, bytes)) = fake.frees {
            *fake.available.entry(signal).or_default() += bytes;
        }
        Ok(())
    }

    async fn remove_containers(&self, pods: &[PodUid]) -> Result<(), String> {
        let fake = &mut *self.0.lock();
        let names: Vec<&str> = pods.iter().map(PodUid::as_str).collect();
        fake.log.push(format!("remove {}", names.join(" ")));
        Ok(())
    }

    async fn memory_is_scarce(&self, marks: &[MemoryMark]) {
        self.0.lock().marks = marks.to_vec();
        if marks.is_empty() {
            std::future::pending::<()>().await;
        }
        self.1.notified().await;
    }

    fn is_cleaned_up(&self, _: &PodUid) -> bool {
        !self.0.lock().keeps_resources
    }
}

impl FakeNode {
    fn add(&self, pod: Value, usage: PodUsage) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut fake = self.0.lock();
        fake.usages.insert(PodUid::of(&pod), usage);
        fake.pods.push(Arc::new(pod));
    }

    fn set(&self, signal: Signal, available: u64) {
        self.0.lock().available.insert(signal, available);
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().log)
    }
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"containers": [{"name": "c"}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn memory(bytes: u64) -> PodUsage {
    let container = ContainerUsage {
        memory: Some(bytes),
        ..ContainerUsage::default()
    };
    PodUsage {
        memory: Some(bytes),
        containers: [("c".to_owned(), container)].into(),
        ..PodUsage::default()
    }
}

fn logs(bytes: u64) -> PodUsage {
    let container = ContainerUsage {
        logs: Some(FileUsage { bytes, inodes: 1 }),
        layer: Some(FileUsage::default()),
        ..ContainerUsage::default()
    };
    PodUsage {
        containers: [("c".to_owned(), container)].into(),
        ..PodUsage::default()
    }
}

fn amount(units: i128) -> AmountOrShare {
    AmountOrShare::Amount(units * NANOS)
}

/// A manager with thresholds of 100 for memory, the file system and process IDs, and its events.
fn manager(change: impl FnOnce(&mut EvictionOptions)) -> (EvictionManager, EventQueue) {
    let signals = [
        Signal::MemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::PidAvailable,
    ];
    let mut options = EvictionOptions {
        thresholds: signals
            .map(|signal| Threshold::hard(signal, amount(100)))
            .into(),
        ..EvictionOptions::default()
    };
    change(&mut options);
    let (recorder, events) = EventRecorder::new("node");
    (EvictionManager::new(options, recorder), events)
}

fn recorded(events: &mut EventQueue) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

fn reasons(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|it| it.reason.as_deref())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_by_rank_is_evicted_and_everybody_is_told() {
    let (manager, mut events) = manager(|_| {});
    let node = FakeNode::default();
    node.add(pod("small", json!({})), memory(10));
    node.add(pod("large", json!({})), memory(20));
    node.set(Signal::MemoryAvailable, 100);
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    assert!(manager.conditions().is_empty());
    // Nothing is measured while there is enough.
    assert_eq!(node.log(), [""; 0]);
    node.set(Signal::MemoryAvailable, 99);
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("large")]);
    assert_eq!(node.log(), ["measure Kernel", "evict large"]);
    assert!(manager.conditions().into_iter().eq([Condition::Memory]));
    let message = "The node was low on resource: memory. Threshold quantity: 100, available: 99. \
                   Container c was using 20, request is 0, has larger consumption of memory. ";
    let eviction = Eviction {
        message: message.to_owned(),
        grace_period: Duration::from_secs(1),
        is_disruption: true,
    };
    assert_eq!(node.0.lock().evictions, [eviction]);
    let events = recorded(&mut events);
    assert_eq!(reasons(&events), ["EvictionThresholdMet", "Evicted"]);
    assert_eq!(events[0].involved_object.kind.as_deref(), Some("Node"));
    assert_eq!(
        events[0].message.as_deref(),
        Some("Attempting to reclaim memory")
    );
    assert_eq!(events[1].message.as_deref(), Some(message));
    let annotations = events[1].metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["starved_resource"], "memory");
    let evicted = manager.evicted();
    assert_eq!((evicted.len(), evicted[0].name.as_str()), (1, "large"));
    let mut page = Exposition::default();
    manager.collect(&mut page);
    let page = page.into_text();
    for line in [
        "kubelet_evictions{eviction_signal=\"memory.available\"} 1\n",
        "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"} 1\n",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_respects_grace_periods() {
    let (manager, _events) = manager(|options| {
        options.thresholds.truncate(1);
        options.thresholds[0].grace_period = Duration::from_secs(30);
        options.max_pod_grace_period = Duration::from_secs(20);
    });
    let node = FakeNode::default();
    node.add(
        pod("own", json!({"terminationGracePeriodSeconds": 7})),
        memory(30),
    );
    node.add(
        pod("long", json!({"terminationGracePeriodSeconds": 90})),
        memory(20),
    );
    node.add(pod("none", json!({})), memory(10));
    node.set(Signal::MemoryAvailable, 99);
    for _ in 0..3 {
        assert_eq!(manager.synchronize(&node).await, NOBODY);
        tokio::time::advance(PERIOD).await;
    }
    for _ in 0..3 {
        manager.synchronize(&node).await;
    }
    let graces = |fake: &Fake| {
        fake.evictions
            .iter()
            .map(|it| it.grace_period.as_secs())
            .collect()
    };
    let graces: Vec<u64> = graces(&node.0.lock());
    assert_eq!(graces, [7, 20, 20]);
}

#[tokio::test(start_paused = true)]
async fn critical_pods_are_spared() {
    let (manager, _events) = manager(|_| {});
    let node = FakeNode::default();
    let critical = json!({"priority": 2_000_000_000});
    node.add(pod("critical", critical), memory(900));
    let mut of_a_file = pod("static", json!({}));
    of_a_file["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"});
    node.add(of_a_file, memory(500));
    node.set(Signal::MemoryAvailable, 1);
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    node.add(pod("other", json!({"priority": 5})), memory(1));
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("other")]);
    assert_eq!(node.0.lock().evictions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_while_pods_cannot_be_measured() {
    let (manager, _events) = manager(|_| {});
    let node = FakeNode::default();
    node.add(pod("first", json!({"priority": -1})), memory(1));
    node.add(pod("large", json!({})), memory(900));
    node.set(Signal::MemoryAvailable, 1);
    node.0.lock().is_unmeasurable = true;
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    assert!(manager.conditions().contains(&Condition::Memory));
    node.0.lock().is_unmeasurable = false;
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("first")]);
}

#[tokio::test(start_paused = true)]
async fn pods_above_their_storage_limits_are_evicted_together() {
    let (manager, mut events) = manager(|options| options.thresholds.clear());
    let node = FakeNode::default();
    let limits = json!([{"name": "c", "resources": {"limits": {"ephemeral-storage": "50"}}}]);
    let limited = json!({ "containers": limits });
    node.add(pod("fine", limited.clone()), logs(50));
    node.add(pod("unlimited", json!({})), logs(9999));
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    node.add(pod("above", limited), logs(51));
    let volume = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "5"}}]});
    let mut usage = logs(0);
    let six = FileUsage {
        bytes: 6,
        inodes: 1,
    };
    usage.local_volumes.insert("v".to_owned(), six);
    node.add(pod("volume", volume), usage);
    let evicted = manager.synchronize(&node).await;
    assert_eq!(evicted, ["above", "volume"].map(PodUid::from));
    let evictions = std::mem::take(&mut node.0.lock().evictions);
    assert!(
        evictions
            .iter()
            .all(|it| !it.is_disruption && it.grace_period == IMMEDIATELY)
    );
    let events = recorded(&mut events);
    assert_eq!(reasons(&events), ["Evicted", "Evicted"]);
    assert!(manager.conditions().is_empty());
    let mut page = Exposition::default();
    manager.collect(&mut page);
    let page = page.into_text();
    for signal in ["ephemeralpodfs.limit", "emptydirfs.limit"] {
        let line = format!("kubelet_evictions{{eviction_signal=\"{signal}\"}} 1\n");
        assert!(page.contains(&line), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn writable_layers_are_measured_only_for_limits_on_storage() {
    let (manager, _events) = manager(|options| options.thresholds.clear());
    let node = FakeNode::default();
    node.add(pod("unlimited", json!({})), logs(1));
    manager.synchronize(&node).await;
    assert_eq!(node.log(), [""; 0]);
    let volume = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "5"}}]});
    node.add(pod("volume", volume), logs(1));
    manager.synchronize(&node).await;
    assert_eq!(node.log(), ["measure Files"]);
    let limits = json!([{"name": "c", "resources": {"limits": {"ephemeral-storage": "50"}}}]);
    node.add(pod("storage", json!({ "containers": limits })), logs(1));
    manager.synchronize(&node).await;
    assert_eq!(node.log(), ["measure Everything"]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_acted_on_first_and_each_eviction_is_observed() {
    let (manager, _events) = manager(|_| {});
    let node = Arc::new(FakeNode::default());
    for name in ["a", "b", "c"] {
        node.add(pod(name, json!({})), memory(10));
    }
    node.set(Signal::PidAvailable, 50);
    node.set(Signal::MemoryAvailable, 50);
    node.0.lock().frees = Some((Signal::MemoryAvailable, 60));
    let manager = Arc::new(manager);
    let cancel = CancellationToken::new();
    let task = {
        let (manager, node, cancel) = (Arc::clone(&manager), Arc::clone(&node), cancel.clone());
        tokio::spawn(async move { manager.run(&*node, cancel).await })
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    let page = || {
        let mut page = Exposition::default();
        manager.collect(&mut page);
        page.into_text()
    };
    // Without waiting for the next period: one pod for memory, the others for process IDs.
    assert_eq!(node.0.lock().evictions.len(), 3);
    let counted = page();
    assert!(
        counted.contains("{eviction_signal=\"memory.available\"} 1\n"),
        "{counted}"
    );
    assert!(
        counted.contains("{eviction_signal=\"pid.available\"} 2\n"),
        "{counted}"
    );
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_observation_waits_for_the_resources_of_an_evicted_pod() {
    let (manager, _events) = manager(|_| {});
    let node = Arc::new(FakeNode::default());
    node.add(pod("a", json!({})), memory(10));
    node.add(pod("b", json!({})), memory(10));
    node.set(Signal::MemoryAvailable, 50);
    node.0.lock().keeps_resources = true;
    let task = {
        let node = Arc::clone(&node);
        let cancel = CancellationToken::new();
        tokio::spawn(async move { manager.run(&*node, cancel).await })
    };
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(node.0.lock().evictions.len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.0.lock().evictions.len(), 2);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn the_node_is_observed_each_ten_seconds_and_when_the_kernel_says_so() {
    let (manager, _events) = manager(|options| options.kernel_notification = true);
    let node = Arc::new(FakeNode::default());
    node.set(Signal::MemoryAvailable, 300);
    let task = {
        let node = Arc::clone(&node);
        let cancel = CancellationToken::new();
        tokio::spawn(async move { manager.run(&*node, cancel).await })
    };
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(node.0.lock().observations, 3);
    let mark = MemoryMark {
        signal: Signal::MemoryAvailable,
        working_set: 900,
    };
    assert_eq!(node.0.lock().marks, [mark]);
    node.set(Signal::MemoryAvailable, 99);
    node.1.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(node.0.lock().observations, 4);
    // A threshold that is met needs no notification.
    assert_eq!(node.0.lock().marks, []);
    node.0.lock().is_unobservable = true;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(node.0.lock().observations, 6);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_reports_all_the_time_counts_once_in_each_period() {
    let (manager, _events) = manager(|options| options.kernel_notification = true);
    let node = Arc::new(FakeNode::default());
    node.set(Signal::MemoryAvailable, 300);
    let task = {
        let node = Arc::clone(&node);
        let cancel = CancellationToken::new();
        tokio::spawn(async move { manager.run(&*node, cancel).await })
    };
    for _ in 0..35 {
        node.1.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Each report, and the period after it.
    assert_eq!(node.0.lock().observations, 8);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn pods_are_admitted_by_the_nodes_conditions() {
    let best_effort = pod("p", json!({}));
    let requests = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
    let burstable = pod("p", json!({ "containers": requests }));
    let tolerates = |key: &str| {
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
        pod("p", json!({"tolerations": [toleration]}))
    };
    let critical = pod("p", json!({"priority": 2_000_000_000}));
    let memory = &[(Signal::MemoryAvailable, 1)][..];
    let disk = &[(Signal::NodeFsAvailable, 1)][..];
    let both = &[(Signal::MemoryAvailable, 1), (Signal::NodeFsAvailable, 1)][..];
    for (pod, under, rejected) in [
        (&best_effort, &[][..], None),
        (&best_effort, memory, Some("[MemoryPressure]")),
        (&best_effort, disk, Some("[DiskPressure]")),
        (
            &best_effort,
            &[(Signal::PidAvailable, 1)],
            Some("[PIDPressure]"),
        ),
        (&burstable, memory, None),
        (&burstable, disk, Some("[DiskPressure]")),
        (&burstable, both, Some("[MemoryPressure DiskPressure]")),
        (&tolerates(MEMORY_TAINT), memory, None),
        (
            &tolerates(MEMORY_TAINT),
            both,
            Some("[MemoryPressure DiskPressure]"),
        ),
        (
            &tolerates("node.kubernetes.io/disk-pressure"),
            memory,
            Some("[MemoryPressure]"),
        ),
        (
            &tolerates("node.kubernetes.io/disk-pressure"),
            disk,
            Some("[DiskPressure]"),
        ),
        (&critical, both, None),
    ] {
        let (manager, _events) = manager(|_| {});
        let node = FakeNode::default();
        for (signal, available) in under {
            node.set(*signal, *available);
        }
        manager.synchronize(&node).await;
        let pod = serde_json::from_value(pod.clone()).unwrap();
        let message = rejected.map(|names| format!("The node had condition: {names}. "));
        assert_eq!(manager.admit(&pod).err(), message, "{under:?}");
    }
}
