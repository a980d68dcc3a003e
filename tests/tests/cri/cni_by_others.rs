//! Interference with the networks of sandboxes: another engine with the same cache, manual changes
//! to the engine, and plugins that outlive a killed shim.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    time::Duration,
};

use bollard::query_parameters::{
    KillContainerOptions, PruneContainersOptions, RemoveContainerOptionsBuilder,
    RestartContainerOptions,
};
use cri_proto::runtime::v1::PodSandboxState;
use e2e::{
    cni::{await_ready, bridge, configure, ensure_nothing_is_left, leases, node_with_bridge},
    cri::{Cri, sandbox},
    node::Node,
};
use serde_json::json;

/// The time for the shim to follow the engine; less than the interval at which it compares its model.
const SOON: Duration = Duration::from_secs(25);
/// The time to wait for a plugin that is still running.
const PATIENCE: Duration = Duration::from_secs(60);

/// Logs its start and end, and finishes its `ADD` only when allowed.
const SLOW: &str = r#"#!/bin/sh
dir=$(dirname "$0")
config=$(cat)
echo "begin $CNI_COMMAND" >>"$dir/slow.log"
[ $CNI_COMMAND != ADD ] || while [ ! -e "$dir/let-go" ]; do sleep 0.1; done
echo "end $CNI_COMMAND" >>"$dir/slow.log"
echo '{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/24"}]}'
"#;

#[tokio::test]
async fn a_plugin_that_outlives_the_shim_ends_before_its_work_is_undone() {
    let (mut node, cri) = node_with_bridge().await.unwrap();
    let script = node.path("cni/bin/slow");
    fs::write(&script, SLOW).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut config = bridge(&node);
    config["name"] = json!("slow");
    let plugins = config["plugins"].as_array_mut().unwrap();
    plugins.push(json!({"type": "slow"}));
    configure(&node, &config).unwrap();
    let log = node.path("cni/bin/slow.log");
    let asked = || fs::read_to_string(&log).unwrap_or_default();
    node.await_until("the configuration is seen", SOON, async |node| {
        Ok(node.shim_log().contains("network=\"slow\""))
    })
    .await
    .unwrap();
    let mut runner = cri.clone();
    // The request fails when its shim is killed.
    let run = tokio::spawn(async move { runner.run(&sandbox("slow")).await.is_ok() });
    node.await_until("the plugin is at it", SOON, async |_| {
        Ok(asked().contains("begin ADD"))
    })
    .await
    .unwrap();
    node.kill_shim().unwrap();
    assert!(!run.await.unwrap());
    node.start_shim().await.unwrap();
    node.await_until("the shim finds it", SOON, async |node| {
        Ok(asked().contains("DEL") || node.shim_log().contains("left running"))
    })
    .await
    .unwrap();
    fs::write(node.path("cni/bin/let-go"), "").unwrap();
    node.await_until("its work is undone", PATIENCE, async |_| {
        Ok(asked().contains("end DEL"))
    })
    .await
    .unwrap();
    let order = "begin ADD\nend ADD\nbegin DEL\nend DEL\n";
    assert_eq!(asked(), order, "{}", node.shim_log());
}

#[tokio::test]
async fn the_pods_of_another_engine_keep_their_network() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let pod = cri.run(&sandbox("web")).await.unwrap();
    let attached = leases(&node);
    let mut other = Node::with_cni().await.unwrap();
    other.stop_shim().await.unwrap();
    // Two engines on one node share libcni's cache directory.
    let cache = other.path("cni/cache");
    let _ = fs::remove_dir_all(&cache);
    symlink(node.path("cni/cache"), &cache).unwrap();
    configure(&other, &bridge(&other)).unwrap();
    other.start_shim().await.unwrap();
    let mut others = Cri::of(&other).await.unwrap();
    await_ready(&other, &others).await.unwrap();
    let theirs = others.run(&sandbox("web")).await.unwrap();
    // The shim looks for all missing sandboxes before this one is detached.
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    let docker = other.docker().unwrap();
    docker.remove_container(&theirs, Some(force)).await.unwrap();
    other
        .await_until("its own is detached, and no other", SOON, async |_| {
            Ok(leases(&node) == attached)
        })
        .await
        .unwrap();
    let status = cri.pod_status(&pod).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    cri.remove_pod(&pod).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_was_started_again_is_detached_from_what_it_had() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let docker = node.docker().unwrap();
    let (pod, _) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let options = None::<RestartContainerOptions>;
    docker.restart_container(&pod, options).await.unwrap();
    node.await_until("it is not ready", SOON, async |_| {
        let status = cri.clone().pod_status(&pod).await?;
        Ok(status.state() == PodSandboxState::SandboxNotready)
    })
    .await
    .unwrap();
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_was_pruned_is_detached() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let docker = node.docker().unwrap();
    let pod = cri.run(&sandbox("web")).await.unwrap();
    let options = None::<KillContainerOptions>;
    docker.kill_container(&pod, options).await.unwrap();
    let options = None::<PruneContainersOptions>;
    docker.prune_containers(options).await.unwrap();
    node.await_until("it is detached", SOON, async |node| {
        Ok(leases(node) == (vec![], vec![]))
    })
    .await
    .unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}
