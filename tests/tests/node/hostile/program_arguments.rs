//! Fields of pods that could be taken for options of the programs that the kubelet runs.

use std::{fs, time::Duration};

use e2e::{cluster::Cluster, node::Node};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

/// Servers and paths of NFS volumes, each with the invalid field.
const HOSTILE: &[(&str, &str, &str)] = &[
    ("-T/tmp/fstab", "/data", "server"),
    ("--fstab=/tmp/fstab", "/data", "server"),
    ("nfs.example -o", "/data", "server"),
    ("nfs.example\n", "/data", "server"),
    ("nfs.example:/other", "/data", "server"),
    ("one.example,two.example", "/data", "server"),
    ("nfs.example", "-o", "path"),
    ("nfs.example", "/data -o suid", "path"),
    ("nfs.example", "/data\t", "path"),
    ("nfs.example", "/data\u{1b}[0m", "path"),
];

/// A node whose `mount` logs its arguments, one per line, and mounts nothing.
async fn node() -> Node {
    let node = Node::with_shim().await.unwrap();
    let log = node.path("mount.log");
    let script = format!("printf '%s\\n' \"$@\" end >> {}", log.display());
    node.replace_program("mount", &script).unwrap();
    node
}

fn pod(name: &str, server: &str, path: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "e2e.local/busybox:1", "command": ["sleep", "1000"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }],
            "volumes": [{"name": "v", "nfs": {"server": server, "path": path}}],
        }
    })
}

/// Asserts that `mount` was run only for the pod with this UID.
fn assert_mounted_alone(node: &Node, uid: &str) {
    let volume = format!("kubelet/pods/{uid}/volumes/kubernetes.io~nfs/v");
    let volume = node.path(&volume).display().to_string();
    let expected = ["-t", "nfs", "--", "nfs.example:/data", &volume, "end", ""];
    let ran = fs::read_to_string(node.path("mount.log")).unwrap();
    assert_eq!(ran, expected.join("\n"));
}

#[tokio::test]
async fn no_field_of_a_static_pod_is_an_option_of_mount() {
    let mut node = node().await;
    node.start_kubelet().await.unwrap();
    for (index, (server, path, _)) in HOSTILE.iter().enumerate() {
        let pod = pod(&format!("hostile-{index}"), server, path);
        let manifest = pod.to_string();
        node.write_manifest(&format!("{index}.json"), &manifest)
            .unwrap();
    }
    let plain = pod("plain", "nfs.example", "/data");
    node.write_manifest("plain.json", &plain.to_string())
        .unwrap();
    let plain = node.await_running("plain", SOON).await.unwrap();
    node.await_until("all manifests were read", SOON, async |node| {
        let log = node.kubelet_log();
        let refused = |(index, (_, _, field)): (usize, &(&str, &str, &str))| {
            log.lines().any(|line| {
                line.contains(&format!("/{index}.json"))
                    && line.contains(&format!("spec.volumes[0].nfs.{field}: "))
            })
        };
        Ok(HOSTILE.iter().enumerate().all(refused))
    })
    .await
    .unwrap();
    assert_eq!(node.pods().await.unwrap().len(), 1);
    assert_mounted_alone(&node, plain["metadata"]["uid"].as_str().unwrap());
}

#[tokio::test]
async fn no_field_of_a_pod_of_the_api_server_is_an_option_of_mount() {
    let cluster = Cluster::of(node().await).await.unwrap();
    let node = &cluster.node;
    let create = |pod: Value| {
        let file = node.path("pod.json");
        fs::write(&file, pod.to_string()).unwrap();
        let file = file.display().to_string();
        cluster.kubectl_prints(&["create", "-f", &file]).unwrap();
    };
    for (index, (server, path, _)) in HOSTILE.iter().enumerate() {
        create(pod(&format!("hostile-{index}"), server, path));
    }
    node.await_until("the events name the fields", SOON, async |_| {
        let events = cluster.control_plane.get("/api/v1/events").await?;
        let told = |(index, (_, _, field)): (usize, &(&str, &str, &str))| {
            events["items"].as_array().into_iter().flatten().any(|e| {
                let message = e["message"].as_str().unwrap_or_default();
                e["reason"] == "FailedMount"
                    && e["involvedObject"]["name"] == format!("hostile-{index}")
                    && message.contains(&format!("spec.volumes[0].nfs.{field}: "))
            })
        };
        Ok(HOSTILE.iter().enumerate().all(told))
    })
    .await
    .unwrap();
    create(pod("plain", "nfs.example", "/data"));
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    let plain = cluster.await_pod("plain", SOON, is_running).await.unwrap();
    assert_mounted_alone(node, plain["metadata"]["uid"].as_str().unwrap());
}
