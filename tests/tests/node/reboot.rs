//! A node that boots while its API server is unreachable starts its pods from its checkpoint.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use e2e::{
    cluster::Cluster,
    images::BUSYBOX,
    node::{Node, is_ready},
};
use serde_json::{Value, json};

/// The time for a pod to reach the awaited state.
const SOON: Duration = Duration::from_secs(60);

/// A pod that is ready only with its config map in a volume and its secret in a variable.
fn pod(name: &str) -> Value {
    let is_told = "test \"$(cat /told/word)\" = hello && test \"$SECRET\" = hush";
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "told", "configMap": {"name": "told"}}],
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
                "env": [{
                    "name": "SECRET",
                    "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}
                }],
                "volumeMounts": [{"name": "told", "mountPath": "/told"}],
                "readinessProbe": {
                    "periodSeconds": 1, "exec": {"command": ["sh", "-c", is_told]}
                }
            }]
        }
    })
}

fn container_id(pod: &Value) -> &str {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.unwrap_or_default()
}

/// Waits until the kubelet itself reports the pod as ready, with a container other than `before`.
async fn await_anew(node: &Node, name: &str, before: &str) -> Result<String> {
    let ready = async |node: &Node| {
        let pods = node.pods().await?;
        let mut pods = pods.iter().filter(|pod| pod["metadata"]["name"] == name);
        Ok(pods.any(|pod| is_ready(pod) && container_id(pod) != before))
    };
    node.await_until(&format!("{name} to be ready again"), SOON, ready)
        .await?;
    let pods = node.pods().await?;
    let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name);
    Ok(container_id(pod.unwrap()).to_owned())
}

fn is_kept(dir: &Path, files: &[&str]) -> bool {
    files.iter().all(|file| dir.join(file).is_file())
}

async fn starts_its_pods_while_the_api_server_is_away(node: Node) {
    let dir = node.path("checkpoint");
    let key = node.path("checkpoint.key");
    fs::write(&key, [7; 32]).unwrap();
    let flags = [
        format!("--bootstrap-checkpoint-path={}", dir.display()),
        format!("--bootstrap-checkpoint-key={}", key.display()),
    ];
    let mut on = Cluster::with_flags(node, &flags).await.unwrap();
    for create in [
        ["create", "configmap", "told", "--from-literal=word=hello"].as_slice(),
        &[
            "create",
            "secret",
            "generic",
            "hidden",
            "--from-literal=word=hush",
        ],
    ] {
        on.kubectl_prints(create).unwrap();
    }
    let mut before = Vec::new();
    for name in ["stays", "leaves"] {
        let file = on.node.path("pod.json");
        fs::write(&file, pod(name).to_string()).unwrap();
        let create = ["create", "-f", &file.display().to_string()];
        on.kubectl_prints(&create).unwrap();
        let pod = on.await_pod(name, SOON, is_ready).await.unwrap();
        before.push(container_id(&pod).to_owned());
    }
    let files = [
        "pods/default/stays",
        "pods/default/leaves",
        "configmaps/default/told",
        "secrets/default/hidden",
    ];
    let kept = async |_: &Node| Ok(is_kept(&dir, &files));
    let node = &on.node;
    node.await_until("everything to be kept", SOON, kept)
        .await
        .unwrap();
    let sealed = fs::read(dir.join("secrets/default/hidden")).unwrap();
    let word = b"hush".as_slice();
    assert!(!sealed.windows(word.len()).any(|part| part == word));

    on.node.reboot().await.unwrap();
    let delete = ["delete", "pod", "leaves", "--wait=false"];
    on.kubectl_prints(&delete).unwrap();
    on.control_plane.set_available(false).await.unwrap();
    on.start_kubelet().await.unwrap();
    let stays = await_anew(&on.node, "stays", &before[0]).await.unwrap();
    await_anew(&on.node, "leaves", &before[1]).await.unwrap();

    on.control_plane.set_available(true).await.unwrap();
    on.await_pod("leaves", SOON, Value::is_null).await.unwrap();
    let told = |pod: &Value| is_ready(pod) && container_id(pod) == stays;
    on.await_pod("stays", SOON, told).await.unwrap();
    let alone = async |node: &Node| Ok(node.pods().await?.len() == 1);
    let what = "nothing to be left of the pod that was deleted";
    on.node.await_until(what, SOON, alone).await.unwrap();
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().await.unwrap();
    node.start_shim_beside_the_engine(&[]).await.unwrap();
    starts_its_pods_while_the_api_server_is_away(node).await;
}

#[tokio::test]
async fn on_containerd() {
    let node = Node::with_containerd().await.unwrap();
    starts_its_pods_while_the_api_server_is_away(node).await;
}
