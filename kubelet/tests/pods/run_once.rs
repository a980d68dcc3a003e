//! `--runonce`.

use std::sync::Arc;

use kubelet::sources::update::{PodOperation, PodUpdate, Source};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::node::{Node, SECOND, pod};

#[tokio::test(start_paused = true)]
async fn pods_are_started_once_and_left_running() {
    let node = Node::new();
    let other = node.start();
    other.add(pod("other", "other", json!({}))).await;
    other.until_phase("other", "Running", 3 * SECOND).await;
    other.stop().await;

    let (_kubelet, pods) =
        node.kubelet(node.options(), Arc::new(|| true), &CancellationToken::new());
    let (updates, receiver) = mpsc::channel(1);
    let absent = json!({"containers": [
        {"name": "c", "image": "absent:1", "imagePullPolicy": "Never"}
    ]});
    let update = PodUpdate {
        pods: vec![
            Arc::new(pod("bad", "u2", absent)),
            Arc::new(pod("web", "u1", json!({}))),
        ],
        operation: PodOperation::Add,
        source: Source::File,
    };
    updates.send(update).await.unwrap();
    let mut results = pods.run_once(receiver).await.unwrap();
    results.sort_by_key(|result| result.pod.metadata.name.clone());
    assert_eq!(results.len(), 2);
    let error = results[0].result.as_ref().unwrap_err();
    assert!(error.contains("ErrImageNeverPull"), "{error}");
    assert_eq!(results[1].result, Ok(()));
    // The pod's container and an unrelated one.
    assert_eq!(node.runtime.running("c").len(), 2);
}
