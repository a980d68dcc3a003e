//! The public csi-driver-host-path with its registrar on a node, if the machine has them: volumes
//! as directories and as block devices, expansion and ephemeral volumes, while the driver, the
//! kubelet or both are killed. In each case data is intact, no container is started twice, and
//! nothing is left.
//!
//! `CSI_HOST_PATH_BIN` is the directory of both programs, and `KUBERNETES_SERVER_BIN` that of
//! Kubernetes' own servers, if available. `CSI_ROUNDS` is the number of rounds (default: one), and
//! `CSI_SEED` the seed of the moments of kills.

mod attacher;
mod controller;
mod driver;
mod kills;
mod leftovers;
mod pods;
mod programs;
mod site;
mod volume;

use std::{
    env,
    hash::{BuildHasher as _, RandomState},
};

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, control_plane, node::Node};
use test_run::size;
use tokio::time::Instant;

use self::{
    kills::Killed,
    pods::{PodAction, PodVolume},
    programs::Programs,
    site::Site,
    volume::Mode,
};

const ROUNDS: &str = "CSI_ROUNDS";
const SEED: &str = "CSI_SEED";

const STAGE: &str = "NodeStageVolume";
const PUBLISH: &str = "NodePublishVolume";
const EXPAND: &str = "NodeExpandVolume";
const UNPUBLISH: &str = "NodeUnpublishVolume";
const UNSTAGE: &str = "NodeUnstageVolume";

async fn docker() -> Node {
    Node::with_shim_beside_the_engine().await.unwrap()
}

async fn containerd() -> Node {
    Node::with_containerd().await.unwrap()
}

async fn run(cluster: Cluster, programs: Programs) {
    let seed = env::var(SEED).map_or_else(
        |_| RandomState::new().hash_one(0),
        |text| text.parse().unwrap(),
    );
    println!("{SEED}={seed}");
    let mut site = Site::new(cluster, programs, seed).await.unwrap();
    for round in 0..size::amount(ROUNDS, 1) {
        for killed in [
            Killed::Nobody,
            Killed::Driver,
            Killed::Kubelet,
            Killed::Both,
        ] {
            for mode in [Some(Mode::Filesystem), Some(Mode::Block), None] {
                let begun = Instant::now();
                let lived = match mode {
                    Some(mode) => persistent(&mut site, round, mode, killed).await,
                    None => ephemeral(&mut site, round, killed).await,
                };
                let what = mode.map_or("Ephemeral".to_owned(), |mode| format!("{mode:?}"));
                if let Err(error) = lived {
                    panic!("{SEED}={seed}: round {round}, {what}, {killed:?}: {error:?}");
                }
                println!("  {round}: {what}, {killed:?}: {:?}", begun.elapsed());
            }
        }
    }
}

/// A volume that two pods use one after the other, and that is expanded meanwhile.
async fn persistent(site: &mut Site, round: u64, mode: Mode, killed: Killed) -> Result<()> {
    let name = format!("{mode:?}-{killed:?}-{round}").to_lowercase();
    let word = format!("{name}-{}", site.random(u64::MAX));
    let volume = site.provision(&name, mode).await?;
    let uses = PodVolume::Claimed(&volume);

    let moment = site.draw(&[STAGE, PUBLISH]);
    let writer = site
        .start(&format!("{name}-writes"), uses, PodAction::Writes(&word))
        .await?;
    site.disturb(killed, &moment).await?;
    let container = site.found(&writer, &word).await?;

    let moment = site.draw(&[]);
    site.disturb(killed, &moment).await?;
    let same = site.found(&writer, &word).await?;
    ensure!(same == container, "{container} became {same}");

    let moment = site.draw(&[EXPAND]);
    let log = site.driver.log_end();
    site.grow(&volume).await?;
    site.touch(&writer).await?;
    site.disturb(killed, &moment).await?;
    site.touch(&writer).await?;
    site.grown(&volume).await.context("it grows")?;
    ensure!(
        site.driver.log_from(log)?.contains(EXPAND),
        "not by {EXPAND}"
    );
    let same = site.found(&writer, &word).await?;
    ensure!(same == container, "{container} became {same}");

    // The next pod may start while the last one terminates.
    let comes_early = site.random(2) == 0;
    let moment = site.draw(&[UNPUBLISH, UNSTAGE]);
    site.end(&writer).await?;
    let reader = format!("{name}-reads");
    let reader = if comes_early {
        let reader = site.start(&reader, uses, PodAction::Reads).await?;
        site.disturb(killed, &moment).await?;
        site.gone(&writer).await?;
        reader
    } else {
        site.disturb(killed, &moment).await?;
        site.gone(&writer).await?;
        site.start(&reader, uses, PodAction::Reads).await?
    };
    site.found(&reader, &word).await?;

    let moment = site.draw(&[UNPUBLISH, UNSTAGE]);
    site.end(&reader).await?;
    site.disturb(killed, &moment).await?;
    site.gone(&reader).await?;
    site.nothing_left().await?;
    site.remove(&volume).await
}

/// A volume that is created and deleted with its pod.
async fn ephemeral(site: &mut Site, round: u64, killed: Killed) -> Result<()> {
    let name = format!("ephemeral-{killed:?}-{round}").to_lowercase();
    let moment = site.draw(&[PUBLISH]);
    let user = site
        .start(&name, PodVolume::Ephemeral, PodAction::Writes("here"))
        .await?;
    site.disturb(killed, &moment).await?;
    let container = site.found(&user, "here").await?;

    let moment = site.draw(&[]);
    site.disturb(killed, &moment).await?;
    let same = site.found(&user, "here").await?;
    ensure!(same == container, "{container} became {same}");

    let moment = site.draw(&[UNPUBLISH]);
    site.end(&user).await?;
    site.disturb(killed, &moment).await?;
    site.gone(&user).await?;
    site.nothing_left().await?;
    let controller = site.driver.controller().await?;
    for volume in site.driver.volumes()? {
        // If the driver is killed before it has recorded a publish, it forgets the volume's
        // publication. It then answers that there is nothing to unpublish.
        ensure!(volume.ephemeral && killed != Killed::Nobody, "{volume:?}");
        println!("    the driver keeps {volume:?}");
        controller.delete(&volume.id).await?;
    }
    Ok(())
}

async fn run_by_double(test: &str, node: impl AsyncFnOnce() -> Node) {
    if let Some(programs) = Programs::at_hand(&format!("real_csi::{test}")).unwrap() {
        run(Cluster::of(node().await).await.unwrap(), programs).await;
    }
}

async fn run_by_kubernetes(test: &str, node: impl AsyncFnOnce() -> Node) {
    let test = format!("real_csi::{test}");
    let programs = Programs::at_hand(&test).unwrap();
    let servers = control_plane::Programs::at_hand(&test).unwrap();
    if let (Some(programs), Some(servers)) = (programs, servers) {
        let cluster = Cluster::by_kubernetes(node().await, &servers).await;
        run(cluster.unwrap(), programs).await;
    }
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    run_by_double("on_docker_through_the_shim", docker).await;
}

#[tokio::test]
async fn on_docker_through_the_shim_by_kubernetes_own_servers() {
    let test = "on_docker_through_the_shim_by_kubernetes_own_servers";
    run_by_kubernetes(test, docker).await;
}

#[tokio::test]
async fn on_containerd() {
    run_by_double("on_containerd", containerd).await;
}

#[tokio::test]
async fn on_containerd_by_kubernetes_own_servers() {
    run_by_kubernetes("on_containerd_by_kubernetes_own_servers", containerd).await;
}
