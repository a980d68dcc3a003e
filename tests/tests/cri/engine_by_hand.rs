//! CRI after manual changes to the engine: `docker restart`, `rename`, `pause`, `update`, `system
//! prune`.

use std::time::Duration;

use anyhow::Result;
use bollard::{
    models::ContainerUpdateBody,
    query_parameters::{
        KillContainerOptions, PruneContainersOptions, PruneImagesOptionsBuilder,
        PruneNetworksOptions, RenameContainerOptionsBuilder, RestartContainerOptions,
        StartContainerOptions,
    },
};
use cri_proto::runtime::v1::{
    self as cri, ContainerState, LinuxContainerResources, PodSandboxState,
};
use e2e::{
    cri::{Cri, host_sandbox, sandbox},
    node::Node,
};

/// The time for the shim to follow the engine; less than the interval at which it compares its model.
const SOON: Duration = Duration::from_secs(25);

async fn await_sandbox(node: &Node, cri: &Cri, id: &str, state: PodSandboxState) {
    let what = format!("sandbox {id} is {state:?}");
    node.await_until(&what, SOON, async |_| {
        Ok(cri.clone().pod_status(id).await?.state() == state)
    })
    .await
    .unwrap();
}

/// The container's limits according to its status.
async fn limits(cri: &Cri, id: &str) -> Result<LinuxContainerResources> {
    let status = cri.clone().status(id).await?;
    let resources = status.resources.and_then(|resources| resources.linux);
    Ok(resources.unwrap_or_default())
}

#[tokio::test]
async fn a_sandbox_that_was_started_again_makes_way_for_a_new_one() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let docker = node.docker().unwrap();
    let (restarted, _) = cri.run_pod("restarted", &["sleep", "1000"]).await.unwrap();
    let killed = cri.run(&sandbox("killed")).await.unwrap();
    let host = cri.run(&host_sandbox("host")).await.unwrap();
    let kept = cri.run(&sandbox("kept")).await.unwrap();
    let options = None::<RestartContainerOptions>;
    for id in [&restarted, &host] {
        docker.restart_container(id, options.clone()).await.unwrap();
    }
    let kill = None::<KillContainerOptions>;
    docker.kill_container(&killed, kill).await.unwrap();
    await_sandbox(&node, &cri, &killed, PodSandboxState::SandboxNotready).await;
    let start = None::<StartContainerOptions>;
    docker.start_container(&killed, start).await.unwrap();
    let gone = [&restarted, &killed, &host];
    for id in gone {
        await_sandbox(&node, &cri, id, PodSandboxState::SandboxNotready).await;
    }
    // A shim that did not see the restarts reports the same.
    node.kill_shim().unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    await_sandbox(&node, &cri, &kept, PodSandboxState::SandboxReady).await;
    for id in gone {
        let state = cri.pod_status(id).await.unwrap().state();
        assert_eq!(state, PodSandboxState::SandboxNotready);
        cri.stop_pod(id).await.unwrap();
        let inspect = docker.inspect_container(id, None).await.unwrap();
        assert_eq!(inspect.state.unwrap().running, Some(false));
    }
    // The kubelet reacts like this.
    let mut again = sandbox("restarted");
    again.metadata.as_mut().unwrap().attempt = 1;
    let again = cri.run(&again).await.unwrap();
    await_sandbox(&node, &cri, &again, PodSandboxState::SandboxReady).await;
    for id in gone {
        cri.remove_pod(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_renamed_container_is_found_by_what_it_was() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let docker = node.docker().unwrap();
    let (pod, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let before = (
        cri.pod_status(&pod).await.unwrap(),
        cri.status(&container).await.unwrap(),
    );
    for (id, name) in [(&pod, "mine"), (&container, "my-main")] {
        let options = RenameContainerOptionsBuilder::new().name(name).build();
        docker.rename_container(id, options).await.unwrap();
    }
    // The shim still follows the container: later changes are in the model.
    cri.stop(&container, 0).await.unwrap();
    let status = cri.status(&container).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(status.metadata, before.1.metadata);
    assert_eq!(cri.pod_status(&pod).await.unwrap(), before.0);
    let listed = cri.pods(cri::PodSandboxFilter::default()).await.unwrap();
    assert_eq!(listed[0].metadata, before.0.metadata);
    cri.remove_pod(&pod).await.unwrap();
    let listed = cri.containers(cri::ContainerFilter::default()).await;
    assert!(listed.unwrap().is_empty());
}

/// `docker pause`. With cgroup v1, runc gives up if a busy machine does not freeze in time.
async fn pause(node: &Node, docker: &bollard::Docker, id: &str) {
    node.await_until("the container is paused", SOON, async |_| {
        match docker.pause_container(id).await {
            Err(error) if error.to_string().contains("unable to freeze") => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_paused_container_runs() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let docker = node.docker().unwrap();
    let (pod, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    for id in [&pod, &container] {
        pause(&node, &docker, id).await;
    }
    // When this pod runs, the shim has seen the pause.
    let (_, other) = cri.run_pod("other", &["sleep", "1000"]).await.unwrap();
    let running = ContainerState::ContainerRunning;
    assert_eq!(cri.status(&other).await.unwrap().state(), running);
    assert_eq!(cri.status(&container).await.unwrap().state(), running);
    let ready = PodSandboxState::SandboxReady;
    assert_eq!(cri.pod_status(&pod).await.unwrap().state(), ready);
    docker.unpause_container(&container).await.unwrap();
    let echoed = cri.exec(&container, &["echo", "hello"], 10).await.unwrap();
    assert_eq!(echoed.stdout, b"hello\n");
    // A paused container can be stopped.
    pause(&node, &docker, &container).await;
    cri.stop(&container, 1).await.unwrap();
    let exited = ContainerState::ContainerExited;
    assert_eq!(cri.status(&container).await.unwrap().state(), exited);
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn limits_that_somebody_set_are_in_the_status() {
    const MEMORY: i64 = 64 << 20;
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let limits_of = async |_: &Node| {
        let limits = limits(&cri, &container).await?;
        Ok((limits.memory_limit_in_bytes, limits.cpu_shares) == (MEMORY, 512))
    };
    let update = ContainerUpdateBody {
        memory: Some(MEMORY),
        memory_swap: Some(MEMORY),
        cpu_shares: Some(512),
        ..Default::default()
    };
    let docker = node.docker().unwrap();
    docker.update_container(&container, update).await.unwrap();
    node.await_until("the limits are reported", SOON, limits_of)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_was_pruned_is_gone_and_does_not_hinder() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let docker = node.docker().unwrap();
    let (kept, running) = cri.run_pod("kept", &["sleep", "1000"]).await.unwrap();
    let mut pod = sandbox("gone");
    pod.log_directory = node.path("logs/gone").display().to_string();
    let gone = cri.run(&pod).await.unwrap();
    let mut config = e2e::cri::container("main", &["true"]);
    config.log_path = "0.log".to_owned();
    let ended = cri.create(&gone, config, &pod).await.unwrap();
    cri.start(&ended).await.unwrap();
    cri.stop_pod(&gone).await.unwrap();
    let prune = async || {
        let containers = None::<PruneContainersOptions>;
        docker.prune_containers(containers).await.unwrap();
        docker
            .prune_networks(None::<PruneNetworksOptions>)
            .await
            .unwrap();
        let all = [("dangling", vec!["false"])].into();
        let images = PruneImagesOptionsBuilder::new().filters(&all).build();
        docker.prune_images(Some(images)).await.unwrap();
    };
    prune().await;
    node.await_until("what was pruned is gone", SOON, async |_| {
        let pods = cri.clone().pods(Default::default()).await?;
        let containers = cri.clone().containers(Default::default()).await?;
        let pods: Vec<_> = pods.into_iter().map(|pod| pod.id).collect();
        let containers: Vec<_> = containers.into_iter().map(|c| c.id).collect();
        Ok(pods == [kept.clone()] && containers == [running.clone()])
    })
    .await
    .unwrap();
    let checkpoint = node.path(&format!("shim/logs/{ended}.json"));
    node.await_until("its log is released", SOON, async |_| {
        Ok(!checkpoint.exists())
    })
    .await
    .unwrap();
    // The kubelet's calls when it finds them gone.
    cri.stop_pod(&gone).await.unwrap();
    cri.remove_pod(&gone).await.unwrap();
    cri.remove(&ended).await.unwrap();

    // After the removal of the last pod, the prune also removes the sandbox image.
    cri.remove_pod(&kept).await.unwrap();
    prune().await;
    let again = cri.run(&sandbox("again")).await.unwrap();
    await_sandbox(&node, &cri, &again, PodSandboxState::SandboxReady).await;
    node.stop_shim().await.unwrap();
}
