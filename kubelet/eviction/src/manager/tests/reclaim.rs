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

#[tokio::test(start_paused = true)]
async fn space_that_the_runtime_frees_later_spares_a_pod() {
    let signal = Signal::NodeFsAvailable;
    let (manager, _events) = manager(|options| {
        options.thresholds = vec![Threshold::hard(signal, amount(100))];
    });
    let node = FakeNode::default();
    node.set(signal, 50);
    node.add(pod("innocent", json!({})), memory(10));
    {
        let fake = &mut *node.0.lock();
        fake.reclaimable = BTreeMap::from([("containers", (signal, 0))]);
        fake.freed_later = Some((4, signal, 200));
    }
    assert_eq!(manager.synchronize(&node).await, NOBODY);
    // If nothing was removed, there is nothing to wait for.
    node.0.lock().freed_later = None;
    node.set(signal, 50);
    let begun = Instant::now();
    assert_eq!(manager.synchronize(&node).await, [PodUid::from("innocent")]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
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
