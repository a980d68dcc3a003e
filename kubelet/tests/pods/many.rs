//! Many pods at once.

use fake_runtime::Verb;
use serde_json::json;

use crate::node::{Node, SECOND, pod, until};

#[tokio::test(start_paused = true)]
async fn a_hundred_pods_come_up_and_go() {
    let node = Node::new();
    let kubelet = node.start();
    let pods: Vec<_> = (0..100)
        .map(|index| {
            let name = format!("web-{index}");
            pod(&name, &name, json!({}))
        })
        .collect();
    kubelet.add_all(pods.clone()).await;
    until("all to run", 30 * SECOND, || {
        let running = kubelet.kubelet.pods();
        let running = running.iter().filter(|pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Running")
        });
        running.count() == 100
    })
    .await;
    assert_eq!(node.runtime.calls(Verb::StartContainer), 100);
    assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 100);
    for pod in pods {
        kubelet.remove(pod).await;
    }
    until("all to go", 60 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    assert!(node.runtime.containers().is_empty());
}
