//! Pods that nest directories in their volumes without limit.

use std::{os::unix::fs::symlink, time::Duration};

use deep_tree::{InMemory, nest};
use e2e::node::Node;
use rustix::process::{Pid, Resource, getrlimit, prlimit};

const SOON: Duration = Duration::from_secs(30);
/// The time for the removal of all directories, which is long on a busy machine.
const REMOVAL: Duration = Duration::from_secs(180);
/// The default soft limit of a systemd service.
const DESCRIPTORS: u64 = 1024;

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: e2e.local/busybox:1
    command: [sleep, '1000']
    volumeMounts: [{{name: cache, mountPath: /cache}}]
  volumes: [{{name: cache, emptyDir: {{}}}}]
"
    )
}

#[tokio::test]
async fn a_pod_that_nests_directories_without_end_is_deleted() {
    let memory = InMemory::new().unwrap();
    let mut node = Node::with_shim().await.unwrap();
    symlink(memory.path(), node.path("kubelet")).unwrap();
    node.start_kubelet().await.unwrap();
    let pid = node.kubelet_pid().unwrap().cast_signed();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(DESCRIPTORS);
    prlimit(Pid::from_raw(pid), Resource::Nofile, limit).unwrap();

    node.write_manifest("deep.yaml", &pod("deep")).unwrap();
    let deep = node.await_running("deep", SOON).await.unwrap();
    let dir = node
        .path("kubelet/pods")
        .join(deep["metadata"]["uid"].as_str().unwrap());
    nest(&dir.join("volumes/kubernetes.io~empty-dir/cache")).unwrap();
    node.remove_manifest("deep.yaml").unwrap();
    node.await_until(
        "the pod and its directory are gone",
        REMOVAL,
        async |node| Ok(!dir.exists() && node.pods().await?.is_empty()),
    )
    .await
    .unwrap();
    node.write_manifest("next.yaml", &pod("next")).unwrap();
    node.await_running("next", SOON).await.unwrap();
}
