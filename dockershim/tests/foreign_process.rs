//! PIDs from the engine that now belong to other processes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command},
};

use cri_proto::runtime::v1::{
    ListPodSandboxMetricsRequest, runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, node::Node};
use tonic::Request;

/// A process in a network namespace of its own; killed when dropped.
struct Bystander(Child);

impl Bystander {
    fn start() -> Self {
        let unshare = ["--user", "--net", "--", "sleep", "1000"];
        let child = Command::new("unshare").args(unshare).spawn().unwrap();
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
        let pid = child.id().to_string();
        let (own, bystander) = (namespace("self").unwrap(), Self(child));
        while namespace(&pid).unwrap() == own {
            std::thread::yield_now();
        }
        bystander
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a CNI plugin that logs its command and network namespace, and a network that uses it.
/// Returns the shim's flags.
fn cni(directory: &Path) -> Vec<String> {
    let plugin = directory.join("noting");
    let script = "#!/bin/sh\necho \"$CNI_COMMAND $CNI_NETNS\" >>\"$(dirname \"$0\")/asked\"\n\
                  echo '{\"ips\":[{\"address\":\"10.1.0.2/24\"}]}'\n";
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let network = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"noting"}]}"#;
    fs::write(directory.join("net.conflist"), network).unwrap();
    let flags = ["bin-dir", "conf-dir", "cache-dir"];
    flags
        .map(|flag| format!("--cni-{flag}={}", directory.display()))
        .into()
}

#[tokio::test]
async fn no_plugin_enters_the_network_of_a_process_that_is_not_the_sandboxes() {
    let engine = FakeEngine::start();
    let directory = tempfile::tempdir().unwrap();
    let node = Node::synced_with(&engine, &cni(directory.path())).await;
    let bystander = Bystander::start();
    engine.start_as(bystander.0.id());
    let refused = node.run("web").await.map_err(|refused| refused.to_string());
    let asked = fs::read_to_string(directory.path().join("asked")).unwrap_or_default();
    assert!(!asked.contains("/proc"), "{refused:?}: {asked}");
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("does not belong to container"),
        "{refused}"
    );
    assert!(engine.names().is_empty());
}

#[tokio::test]
async fn the_counters_of_a_process_that_is_not_the_sandboxes_are_not_told() {
    let engine = FakeEngine::start();
    engine.start_as(std::process::id());
    let id = engine.add_sandbox("web", true, false);
    let node = Node::synced(&engine).await;
    let request = Request::new(ListPodSandboxMetricsRequest {});
    let answer = node.service.list_pod_sandbox_metrics(request).await;
    let pods = answer.unwrap().into_inner().pod_metrics;
    assert_eq!(pods[0].pod_sandbox_id, id);
    let told: Vec<_> = pods[0].metrics.iter().map(|metric| &metric.name).collect();
    assert!(told.is_empty(), "{told:?}");
}
