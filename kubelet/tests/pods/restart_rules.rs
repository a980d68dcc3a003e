//! Container-level restart policies and restart rules.

use fake_runtime::{Behaviour, Verb};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn rule(action: &str, code: i32) -> Value {
    json!([{"action": action, "exitCodes": {"operator": "In", "values": [code]}}])
}

#[tokio::test(start_paused = true)]
async fn a_container_has_a_policy_and_rules_of_its_own() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "image": IMAGE, "restartPolicy": "Always"},
        {"name": "b", "image": IMAGE, "restartPolicy": "Never",
         "restartPolicyRules": rule("Restart", 42)}
    ]});
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    node.runtime.exit_container("a", 0);
    node.runtime.exit_container("b", 42);
    until("both to run again", 5 * SECOND, || {
        node.runtime.running("a").len() == 1 && node.runtime.running("b").len() == 1
    })
    .await;
    node.runtime.exit_container("b", 1);
    sleep(60 * SECOND).await;
    assert!(node.runtime.running("b").is_empty());
    assert_eq!(node.runtime.running("a").len(), 1);
    assert_eq!(kubelet.phase("web"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_rule_runs_the_whole_pod_anew_in_its_sandbox() {
    let node = Node::new();
    let exits = Behaviour {
        exits_after: Some((SECOND, 0)),
        ..Behaviour::default()
    };
    node.runtime.behave("i", exits);
    let kubelet = node.start();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "s", "image": IMAGE, "restartPolicy": "Always"},
            {"name": "i", "image": IMAGE}
        ],
        "containers": [
            {"name": "a", "image": IMAGE, "restartPolicy": "Never",
             "restartPolicyRules": rule("RestartAllContainers", 42)},
            {"name": "b", "image": IMAGE}
        ]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let ids = |name: &str| -> Vec<String> {
        node.runtime
            .running(name)
            .into_iter()
            .map(|c| c.id)
            .collect()
    };
    let before = (ids("s"), ids("b"));
    for _ in 0..3 {
        let starts = node.runtime.calls(Verb::StartContainer);
        node.runtime.exit_container("a", 42);
        until("the whole pod", 20 * SECOND, || {
            node.runtime.calls(Verb::StartContainer) == starts + 4
                && node.runtime.running("a").len() == 1
        })
        .await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
    }
    let after = (ids("s"), ids("b"));
    assert_eq!((after.0.len(), after.1.len()), (1, 1));
    assert!(before.0 != after.0 && before.1 != after.1);
    assert_eq!(node.runtime.calls(Verb::RunPodSandbox), 1);
    node.runtime.exit_container("a", 1);
    node.runtime.exit_container("b", 0);
    kubelet.until_phase("web", "Failed", 10 * SECOND).await;
}
