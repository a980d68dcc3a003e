//! Access modes and attachment: which pods may use a volume, and when.

use std::fs;

use fake_csi::{Fault, PUBLISHED};
use kubelet_api_client::events::{EventQueue, EventRecorder};
use serde_json::json;
use tokio::time::sleep;

use super::{Cluster, claimed, claimed_device, gone};
use crate::node::{SECOND, until};

fn with_events() -> (Cluster, EventQueue) {
    let mut on = Cluster::new();
    let (recorder, queue) = EventRecorder::new("node");
    on.node.events = recorder;
    (on, queue)
}

/// Whether there was an event with this reason and text since the last call.
pub(super) fn has_event(queue: &mut EventQueue, reason: &str, text: &str) -> bool {
    let events: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    events.iter().any(|event| {
        let message = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some(reason) && message.contains(text)
    })
}

#[tokio::test(start_paused = true)]
async fn one_pod_gets_a_volume_after_another_has_given_it_back() {
    for (slow, is_device) in [
        ("Unpublish", false),
        ("Unpublish", true),
        ("Publish", false),
        ("Publish", true),
    ] {
        let on = Cluster::new();
        let pod = match is_device {
            true => claimed_device,
            false => claimed,
        };
        if is_device {
            on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
        }
        let _driver = on.serve();
        let kubelet = on.node.start();
        kubelet.add(pod("a")).await;
        kubelet.until_phase("a", "Running", 60 * SECOND).await;
        on.driver.fault(slow, Fault::Delay(20 * SECOND));
        let before = on.driver.verbs().len();
        let is_slow = || on.driver.verbs()[before..].contains(&slow);
        if slow == "Publish" {
            kubelet.add(pod("b")).await;
            until("the first call", 300 * SECOND, is_slow).await;
            kubelet.remove(pod("a")).await;
        } else {
            kubelet.remove(pod("a")).await;
            until("the first call", 300 * SECOND, is_slow).await;
            kubelet.add(pod("b")).await;
        }
        kubelet.until_phase("b", "Running", 300 * SECOND).await;
        gone(&kubelet, &on, "a").await;
        assert_eq!(on.driver.wrongs(), [""; 0]);
        if !is_device {
            assert!(on.published("b", "pv").join(PUBLISHED).exists());
        }
        kubelet.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_one_pod_is_waited_for_by_others() {
    let (on, mut events) = with_events();
    on.put_volume(json!({"accessModes": ["ReadWriteOncePod"]}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.add(claimed("b")).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("b"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert!(has_event(&mut events, "FailedMount", why));
    // The pod that uses the volume keeps it.
    sleep(200 * SECOND).await;
    assert_eq!(kubelet.phase("a"), "Running");
    kubelet.remove(claimed("a")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    assert!(!fs::exists(on.published("a", "pv")).unwrap());
    kubelet.remove(claimed("b")).await;
    gone(&kubelet, &on, "b").await;
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_node_is_not_mounted() {
    let (on, mut events) = with_events();
    let labelled = |zone: &str| {
        let metadata = json!({"name": "node", "labels": {"zone": zone}});
        on.objects.put("node", json!({"metadata": metadata}));
    };
    labelled("a");
    let rule = json!({"key": "zone", "operator": "In", "values": ["b"]});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [rule]}]});
    on.put_volume(json!({"nodeAffinity": {"required": required}}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert_eq!(on.driver.verbs(), [""; 0]);
    let why =
        "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
    assert!(has_event(&mut events, "FailedMount", why));
    labelled("b");
    kubelet.until_phase("a", "Running", 300 * SECOND).await;
    kubelet.stop().await;
}
