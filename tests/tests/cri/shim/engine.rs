//! The shim and its engine: changes by others, crashes of the shim, an engine that hangs or stops.

use std::time::Duration;

use cri_proto::runtime::v1::{self as cri, ContainerState, PodSandboxState};
use e2e::{cri::Cri, images::BUSYBOX, node::Node};

use super::SOON;

#[tokio::test]
async fn what_others_do_on_the_engine_is_followed() {
    let node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    docker.kill_container(&id, None).await.unwrap();
    node.await_until("the kill is seen", SOON, async |_| {
        Ok(cri.clone().status(&id).await?.state() == ContainerState::ContainerExited)
    })
    .await
    .unwrap();
    let force = bollard::query_parameters::RemoveContainerOptionsBuilder::new()
        .force(true)
        .build();
    for gone in [&id, &pod] {
        docker
            .remove_container(gone, Some(force.clone()))
            .await
            .unwrap();
    }
    node.await_until("the removal is seen", SOON, async |_| {
        Ok(cri
            .clone()
            .pods(cri::PodSandboxFilter::default())
            .await?
            .is_empty())
    })
    .await
    .unwrap();
    let foreign = bollard::models::ContainerCreateBody {
        image: Some(BUSYBOX.to_owned()),
        ..Default::default()
    };
    let options = None::<bollard::query_parameters::CreateContainerOptions>;
    docker.create_container(options, foreign).await.unwrap();
    // Once a later pod exists, the container's event has been processed.
    cri.run_pod("next", &["sleep", "1000"]).await.unwrap();
    let listed = cri.containers(cri::ContainerFilter::default()).await;
    assert_eq!(listed.unwrap().len(), 1);
}

#[tokio::test]
async fn a_killed_shim_finds_everything_again() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let before = (
        cri.pod_status(&pod).await.unwrap(),
        cri.status(&id).await.unwrap(),
    );
    node.kill_shim().unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let after = (
        cri.pod_status(&pod).await.unwrap(),
        cri.status(&id).await.unwrap(),
    );
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_sandbox_that_a_crash_left_half_made_is_removed_at_the_start() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (kept, _) = cri.run_pod("kept", &["sleep", "1000"]).await.unwrap();
    let docker = node.docker().unwrap();
    let model = docker
        .inspect_container(&kept, None)
        .await
        .unwrap()
        .config
        .unwrap();
    node.kill_shim().unwrap();
    let half = bollard::models::ContainerCreateBody {
        image: model.image,
        labels: model.labels,
        ..Default::default()
    };
    let name = bollard::query_parameters::CreateContainerOptionsBuilder::new()
        .name("k8s_POD_half_default_uid-half_0")
        .build();
    let half = docker.create_container(Some(name), half).await.unwrap().id;
    node.start_shim().await.unwrap();
    node.await_until("the half-made sandbox is gone", SOON, async |node| {
        let docker = node.docker()?;
        Ok(docker.inspect_container(&half, None).await.is_err())
    })
    .await
    .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    assert_eq!(
        cri.pod_status(&kept).await.unwrap().state(),
        PodSandboxState::SandboxReady
    );
}

#[tokio::test]
async fn lists_go_on_while_the_engine_hangs_or_is_away() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();

    node.engine().pause().unwrap();
    let listed = tokio::time::timeout(
        Duration::from_secs(5),
        cri.containers(cri::ContainerFilter::default()),
    )
    .await
    .expect("a list waited for the engine")
    .unwrap();
    assert_eq!(listed[0].id, id);
    cri.status(&id).await.unwrap();
    node.engine().resume().unwrap();

    node.engine_mut().stop().unwrap();
    let watcher = cri.clone();
    let ready = async || {
        let request = cri::StatusRequest { verbose: false };
        let response = watcher.runtime.clone().status(request).await?;
        let conditions = response.into_inner().status.unwrap().conditions;
        let ready = conditions.into_iter().find(|c| c.r#type == "RuntimeReady");
        anyhow::Ok(ready.unwrap())
    };
    node.await_until("not ready", SOON, async |_| Ok(!ready().await?.status))
        .await
        .unwrap();
    assert!(!ready().await.unwrap().message.is_empty());
    assert_eq!(cri.pods(Default::default()).await.unwrap().len(), 1);

    node.engine_mut().start_again().await.unwrap();
    node.await_until("ready again", SOON, async |_| Ok(ready().await?.status))
        .await
        .unwrap();
    // Stopping the engine ended the containers; the shim has noticed it.
    assert_eq!(
        cri.pod_status(&pod).await.unwrap().state(),
        PodSandboxState::SandboxNotready
    );
    assert_eq!(
        cri.status(&id).await.unwrap().state(),
        ContainerState::ContainerExited
    );
    cri.run_pod("again", &["sleep", "1000"]).await.unwrap();
}
