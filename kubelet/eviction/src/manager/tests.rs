mod fake_node;
mod reclaim;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Event;
use kubelet_api_client::events::EventQueue;
use kubelet_pod_spec::{amount_or_share::AmountOrShare, identity, quantity::NANOS};
use kubelet_resource_analyzer::FileUsage;
use serde_json::{Value, json};
use tokio::sync::Notify;

use self::fake_node::*;
use super::{evict::IMMEDIATELY, *};
use crate::{
    host::{Eviction, Reclaim, UsageDepth},
    observation::Observation,
    signal::Signal,
    usage::{ContainerUsage, PodUsage, PodUsages},
};

const NOBODY: [PodUid; 0] = [];

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
