//! NFS servers that do not answer: a mount may hang forever.

use std::{fs, time::Duration};

use e2e::node::Node;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// More than the number of threads for one server.
const WAITING: usize = 12;

fn pod(name: &str, server: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": "e2e.local/busybox:1", "command": ["sleep", "1000"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }],
            "volumes": [{"name": "v", "nfs": {"server": server, "path": "/data"}}],
        }
    })
}

#[tokio::test]
async fn pods_of_a_server_that_does_not_answer_hold_up_no_others() {
    let mut node = Node::with_shim().await.unwrap();
    // The mounts of one server hang until it is back, like hard mounts.
    let (begun, back) = (node.path("begun"), node.path("back"));
    let script = format!(
        "case \"$*\" in *dead.example*)\n\
         echo begun >> {}\n\
         while ! [ -e {} ]; do sleep 0.2; done;; esac",
        begun.display(),
        back.display()
    );
    node.replace_program("mount", &script).unwrap();
    node.start_kubelet().await.unwrap();
    let write = |node: &Node, name: &str, server: &str| {
        let manifest = pod(name, server).to_string();
        node.write_manifest(&format!("{name}.json"), &manifest)
            .unwrap();
    };
    for number in 0..WAITING {
        write(&node, &format!("waits-{number}"), "dead.example");
    }
    let mounts = || {
        fs::read_to_string(&begun)
            .unwrap_or_default()
            .lines()
            .count()
    };
    let as_many_as_may = "as many mounts are begun as there are threads for a server";
    node.await_until(as_many_as_may, SOON, async |_| Ok(mounts() >= 8))
        .await
        .unwrap();

    write(&node, "other", "well.example");
    node.await_running("other", SOON).await.unwrap();
    assert_eq!(mounts(), 8);
    // A waiting pod can be removed; the others start when the server is back.
    node.remove_manifest("waits-0.json").unwrap();
    fs::write(&back, "").unwrap();
    for number in 1..WAITING {
        let name = format!("waits-{number}");
        node.await_running(&name, SOON).await.unwrap();
    }
    node.await_until("the removed one is gone", SOON, async |node| {
        Ok(node.pod("waits-0").await?.is_none())
    })
    .await
    .unwrap();
}
