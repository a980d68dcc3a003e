//! What the node reclaims before it evicts pods.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_the_node_does_not_need_goes_before_pods() {
    let (manager, mut events) = manager(|options| {
        options.thresholds[1].min_reclaim = amount(50);
    });
    let node = FakeNode::default();
    node.add(pod("p", json!({})), logs(10));
    node.set(Signal::NodeFsAvailable, 90);
    let frees = |bytes| (Signal::NodeFsAvailable, bytes);
    node.0.lock().reclaimable = [("containers", frees(10)), ("images", frees(50))].into();
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    assert_eq!(node.log(), ["reclaim containers", "reclaim images"]);
    assert_eq!(reasons(&recorded(&mut events)), ["EvictionThresholdMet"]);
    // Less than the minimum is reclaimed.
    node.set(Signal::NodeFsAvailable, 90);
    node.0.lock().reclaimable = [("images", frees(59))].into();
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("p")]);
    let expected = [
        "reclaim containers",
        "reclaim images",
        "measure Fresh",
        "evict p",
    ];
    assert_eq!(node.log(), expected);
}

/// A node with too little space, on which a reclaim removes containers without any effect yet.
fn node_that_frees_later() -> (EvictionManager, FakeNode) {
    let signal = Signal::NodeFsAvailable;
    let (manager, _events) = manager(|options| {
        options.thresholds = vec![Threshold::hard(signal, amount(100))];
    });
    let node = FakeNode::default();
    node.set(signal, 50);
    node.add(pod("innocent", json!({})), memory(10));
    node.0.lock().reclaimable = [("containers", (signal, 0))].into();
    (manager, node)
}

#[tokio::test(start_paused = true)]
async fn space_that_the_runtime_frees_later_spares_a_pod() {
    let (manager, node) = node_that_frees_later();
    node.0.lock().freed_later = Some((25, Signal::NodeFsAvailable, 200));
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    // After that, there is nothing to wait for.
    sleep(Duration::from_secs(60)).await;
    node.0.lock().freed_later = None;
    node.set(Signal::NodeFsAvailable, 50);
    let begun = Instant::now();
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("innocent")]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn space_of_an_evicted_pod_that_is_freed_later_spares_the_next() {
    let (manager, node) = node_that_frees_later();
    node.0.lock().reclaimable.clear();
    node.add(pod("guilty", json!({})), logs(1000));
    let cancel = CancellationToken::new();
    let watch = async {
        while node.0.lock().evictions.is_empty() {
            sleep(Duration::from_secs(1)).await;
        }
        sleep(Duration::from_secs(15)).await;
        node.set(Signal::NodeFsAvailable, 200);
        sleep(Duration::from_secs(60)).await;
        cancel.cancel();
    };
    tokio::join!(manager.run(&node, cancel.clone()), watch);
    let names: Vec<String> = node
        .pods()
        .iter()
        .map(|pod| identity::full_name(pod))
        .collect();
    assert_eq!(names, ["innocent_ns"]);
}

#[tokio::test(start_paused = true)]
async fn scarce_memory_does_not_wait_for_space() {
    let (memory_signal, disk) = (Signal::MemoryAvailable, Signal::NodeFsAvailable);
    let (manager, _events) = manager(|options| {
        options.thresholds = vec![
            Threshold::hard(memory_signal, amount(100)),
            Threshold::hard(disk, amount(100)),
        ];
    });
    let node = FakeNode::default();
    node.set(memory_signal, 200);
    node.set(disk, 50);
    node.add(pod("hungry", json!({})), memory(1000));
    node.add(pod("full", json!({})), logs(1000));
    node.0.lock().reclaimable = [("containers", (disk, 0))].into();
    let begun = Instant::now();
    let shortage = async {
        sleep(Duration::from_secs(7)).await;
        node.set(memory_signal, 50);
    };
    let evicted = async {
        let evicted = manager.synchronize(&node).await;
        (evicted, begun.elapsed().as_secs())
    };
    let (_, (evicted, after)) = tokio::join!(shortage, evicted);
    assert_eq!(evicted, [PodUid::from("hungry")]);
    assert!((7..=8).contains(&after), "after {after} s");
    assert_eq!(manager.conditions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn space_is_not_waited_for_in_vain() {
    for (lost_by_second, expected) in [(0, 30), (1, 5)] {
        let (manager, node) = node_that_frees_later();
        let begun = Instant::now();
        let fill = async {
            for second in 0..40 {
                node.set(Signal::NodeFsAvailable, 50 - lost_by_second * second);
                sleep(Duration::from_secs(1)).await;
            }
        };
        let evicted = async {
            let evicted = manager.synchronize(&node).await;
            (evicted, begun.elapsed().as_secs())
        };
        let (_, evicted) = tokio::join!(fill, evicted);
        assert_eq!(evicted, (vec![PodUid::from("innocent")], expected));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_reclaimed_depends_on_the_file_systems() {
    use Signal::{
        ContainerFsAvailable, ImageFsAvailable, ImageFsInodesFree, NodeFsAvailable,
        NodeFsInodesFree,
    };
    let both: &[&str] = &["reclaim containers", "reclaim images"];
    for (layout, signal, reclaimed) in [
        (Layout::Single, NodeFsAvailable, both),
        (Layout::Single, ImageFsInodesFree, both),
        (Layout::ImagesApart, NodeFsAvailable, &[]),
        (Layout::ImagesApart, ImageFsAvailable, both),
        (Layout::ImagesApart, ContainerFsAvailable, both),
        (
            Layout::OnlyImagesApart,
            NodeFsInodesFree,
            &["reclaim containers"],
        ),
        (
            Layout::OnlyImagesApart,
            ContainerFsAvailable,
            &["reclaim containers"],
        ),
        (
            Layout::OnlyImagesApart,
            ImageFsAvailable,
            &["reclaim images"],
        ),
    ] {
        // The threshold of `containerfs` follows from the others.
        let configured = match (signal, layout) {
            (ContainerFsAvailable, Layout::ImagesApart) => ImageFsAvailable,
            (ContainerFsAvailable, _) => NodeFsAvailable,
            (signal, _) => signal,
        };
        let (manager, _events) = manager(|options| {
            options.thresholds = vec![
                Threshold::hard(configured, amount(100)),
                Threshold::hard(ContainerFsAvailable, amount(1)),
            ];
        });
        let node = FakeNode::default();
        node.0.lock().layout = layout;
        node.set(signal, 50);
        assert_eq!(manager.synchronize(&node).await, NOBODY);
        assert_eq!(node.log(), reclaimed, "{layout:?} {signal:?}");
        assert!(manager.conditions().into_iter().eq([Condition::Disk]));
    }
}

#[tokio::test(start_paused = true)]
async fn another_scarce_resource_does_not_undo_a_reclaim() {
    let (manager, _) = manager(|_| ());
    let node = FakeNode::default();
    node.add(pod("p", json!({})), logs(10));
    node.set(Signal::NodeFsAvailable, 90);
    node.0.lock().reclaimable = [("containers", (Signal::NodeFsAvailable, 50))].into();
    // Memory runs short meanwhile; the next look acts on it.
    node.0.lock().freed_later = Some((2, Signal::MemoryAvailable, 10));
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    assert_eq!(node.log(), ["reclaim containers", "reclaim images"]);
    assert_ne!(manager.synchronize(&node).await, NOBODY);
}

#[tokio::test(start_paused = true)]
async fn logs_of_pods_that_are_evicted_for_space_go_before_the_next_observation() {
    let (manager, _events) = manager(|options| {
        options.thresholds = vec![
            Threshold::hard(Signal::NodeFsAvailable, amount(100)),
            Threshold::hard(Signal::MemoryAvailable, amount(100)),
        ];
    });
    let node = Arc::new(FakeNode::default());
    node.0.lock().layout = Layout::ImagesApart;
    node.add(pod("a", json!({})), logs(90));
    node.set(Signal::NodeFsAvailable, 50);
    node.set(Signal::MemoryAvailable, 500);
    node.0.lock().frees = Some((Signal::NodeFsAvailable, 90));
    let task = {
        let node = Arc::clone(&node);
        let cancel = CancellationToken::new();
        tokio::spawn(async move { manager.run(&*node, cancel).await })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.log(), ["measure Fresh", "evict a", "remove a"]);
    // What was evicted for memory keeps its logs.
    node.add(pod("b", json!({})), memory(900));
    node.0.lock().frees = Some((Signal::MemoryAvailable, 900));
    node.set(Signal::MemoryAvailable, 50);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(node.log(), ["measure Kernel", "evict b"]);
    task.abort();
}
