//! The order of calls to drivers, and what remains of a volume.

use std::{fs, path::Path};

use cri_proto::csi::v1::volume_capability::{AccessType, access_mode::Mode};
use fake_csi::{Call, STAGED};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::{Code, Status};

use super::{Cluster, DRIVER, MOUNT_OPTIONS, claimed, claimed_device, gone};
use crate::{
    node::{SECOND, until},
    shutdown::{self, FakeLogin},
};

#[tokio::test(start_paused = true)]
async fn pods_share_what_is_staged() {
    let on = Cluster::new();
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish", "Publish"]);

    let staged = on.staging().join("globalmount");
    assert_eq!(fs::read_to_string(staged.join(STAGED)).unwrap(), "handle-1");
    let stage = &on.stages()[0];
    assert_eq!(stage.volume_id, "handle-1");
    assert_eq!(Path::new(&stage.staging_target_path), staged);
    assert_eq!(stage.volume_context["pool"], "fast");
    let capability = stage.volume_capability.clone().unwrap();
    let access = capability.access_mode.unwrap().mode();
    assert_eq!(access, Mode::SingleNodeWriter);
    let Some(AccessType::Mount(mount)) = capability.access_type else {
        panic!("{:?}", capability.access_type);
    };
    assert_eq!(
        (mount.fs_type.as_str(), mount.mount_flags),
        ("ext4", MOUNT_OPTIONS.map(str::to_owned).to_vec())
    );
    let publish = &on.publishes()[1];
    assert_eq!(Path::new(&publish.staging_target_path), staged);
    assert_eq!(Path::new(&publish.target_path), on.published("b", "pv"));
    assert!(!publish.readonly);
    let seen = on.node.runtime.running("c");
    let sources: Vec<&str> = seen
        .iter()
        .flat_map(|container| &container.config.mounts)
        .filter(|mount| mount.container_path == "/v")
        .map(|mount| mount.host_path.as_str())
        .collect();
    assert_eq!(
        sources.iter().map(Path::new).collect::<Vec<_>>(),
        [on.published("a", "pv"), on.published("b", "pv")]
    );
    let data = on.published("a", "pv").with_file_name("vol_data.json");
    let data: Value = serde_json::from_str(&fs::read_to_string(data).unwrap()).unwrap();
    assert_eq!(data["driverName"], DRIVER);
    assert_eq!(data["volumeHandle"], "handle-1");
    assert_eq!(data["specVolID"], "pv");
    assert_eq!(data["volumeLifecycleMode"], "Persistent");

    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    assert_eq!(on.driver.verbs()[3..], ["Unpublish"]);
    assert!(staged.exists());
    kubelet.remove(claimed("b")).await;
    gone(&kubelet, &on, "b").await;
    until("the unstaging", 60 * SECOND, || {
        on.driver.verbs().len() == 6
    })
    .await;
    assert_eq!(on.driver.verbs()[4..], ["Unpublish", "Unstage"]);
    until("its directory's end", 10 * SECOND, || !staged.exists()).await;
    sleep(600 * SECOND).await;
    assert_eq!(on.driver.verbs().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_restart_asks_the_driver_for_nothing() {
    let on = Cluster::new();
    let driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.stop().await;

    // The driver is down for a while.
    drop(driver);
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    assert_eq!(on.node.runtime.containers().len(), 1);

    // The volume is staged already for another pod.
    let _driver = on.serve();
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish", "Publish"]);
    kubelet.stop().await;

    // A pod that was removed while no kubelet ran is cleaned up from its files on disk.
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    gone(&kubelet, &on, "b").await;
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 300 * SECOND, || {
        on.driver
            .verbs()
            .ends_with(&["Unpublish", "Unpublish", "Unstage"])
    })
    .await;
    assert_eq!(on.driver.verbs().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_a_driver_that_comes_late() {
    let on = Cluster::new();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(20 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    let _driver = on.serve();
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    let registrations = on.driver.registrations();
    assert_eq!(registrations.len(), 1);
    assert!(registrations[0].plugin_registered);
}

#[tokio::test(start_paused = true)]
async fn a_pod_recovers_from_a_driver_that_fails() {
    let on = Cluster::new();
    let _driver = on.serve();
    on.driver.fail("Stage", Status::internal("no disk"));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    let verbs = on.driver.verbs();
    assert!(
        verbs.len() > 2 && verbs.iter().all(|verb| *verb == "Stage"),
        "{verbs:?}"
    );
    // After a final error nothing is staged, so no files remain.
    let device = on.path("plugins/kubernetes.io/csi").join(DRIVER);
    assert_eq!(fs::read_dir(&device).unwrap().count(), 0);
    on.driver.clear_faults();
    on.driver
        .fail("Publish", Status::new(Code::Unavailable, "wait"));
    until("a publish that fails", 300 * SECOND, || {
        on.driver.verbs().contains(&"Publish")
    })
    .await;
    // The driver may have published the volume, perhaps in part.
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 300 * SECOND, || {
        on.driver.verbs().ends_with(&["Unpublish", "Unstage"])
    })
    .await;
    on.driver.clear_faults();
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
}

/// The calls after the last call of `verb`.
fn after_last(on: &Cluster, verb: &str) -> Vec<&'static str> {
    let verbs = on.driver.verbs();
    let last = verbs.iter().rposition(|asked| *asked == verb);
    verbs[last.map_or(0, |last| last + 1)..].to_vec()
}

#[tokio::test(start_paused = true)]
async fn what_was_being_given_back_is_asked_for_anew() {
    let on = Cluster::new();
    let _driver = on.serve();
    let mut kubelet = on.node.start();
    for (pod, is_device) in [(claimed("a"), false), (claimed_device("b"), true)] {
        let name = pod.metadata.name.clone().unwrap();
        if is_device {
            on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
        }
        kubelet.add(pod.clone()).await;
        kubelet.until_phase(&name, "Running", 60 * SECOND).await;
        // After `Unavailable` the driver may still be executing the call.
        on.driver.fail("Unpublish", Status::unavailable("wait"));
        kubelet.remove(pod.clone()).await;
        until("an unpublishing", 60 * SECOND, || {
            on.driver.verbs().last() == Some(&"Unpublish")
        })
        .await;
        kubelet.stop().await;
        on.driver.clear_faults();
        kubelet = on.node.start();
        kubelet.add(pod.clone()).await;
        until("the pod's end or its volume", 60 * SECOND, || {
            !after_last(&on, "Unpublish").is_empty()
        })
        .await;
        sleep(60 * SECOND).await;
        assert_eq!(after_last(&on, "Unpublish"), ["Publish"]);
        assert_eq!(kubelet.phase(&name), "Running");

        on.driver.fail("Unstage", Status::unavailable("wait"));
        kubelet.remove(pod.clone()).await;
        gone(&kubelet, &on, &name).await;
        until("an unstaging", 60 * SECOND, || {
            on.driver.verbs().last() == Some(&"Unstage")
        })
        .await;
        kubelet.add(pod.clone()).await;
        kubelet.until_phase(&name, "Running", 200 * SECOND).await;
        assert_eq!(after_last(&on, "Unstage"), ["Stage", "Publish"]);
        on.driver.clear_faults();
        kubelet.remove(pod).await;
        gone(&kubelet, &on, &name).await;
        until("the unstaging", 300 * SECOND, || {
            on.driver.verbs().last() == Some(&"Unstage")
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_asks_for_no_device() {
    let on = Cluster::new();
    on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
    let driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed_device("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.stop().await;
    drop(driver);
    let kubelet = on.node.start();
    kubelet.add(claimed_device("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(on.driver.verbs(), ["Stage", "Publish"]);
    assert_eq!(on.node.runtime.containers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_volume_of_the_same_name_is_given_back_first() {
    let on = Cluster::new();
    on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed_device("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    on.driver.fail("Unstage", Status::internal("busy"));
    kubelet.remove(claimed_device("a")).await;
    gone(&kubelet, &on, "a").await;
    let other = json!({"driver": DRIVER, "volumeHandle": "handle-2"});
    on.put_volume(json!({"volumeMode": "Block", "csi": other}), "1Gi");
    kubelet.add(claimed_device("b")).await;
    sleep(60 * SECOND).await;
    assert_eq!(kubelet.waiting("b"), "ContainerCreating");
    assert_eq!(on.stages().len(), 1);
    on.driver.clear_faults();
    kubelet.until_phase("b", "Running", 300 * SECOND).await;
    assert_eq!(after_last(&on, "Unstage"), ["Stage", "Publish"]);
    let calls = on.driver.calls().into_iter();
    let mut unstaged = calls.filter_map(|call| match call {
        Call::Unstage(request) => Some(request.volume_id),
        _ => None,
    });
    assert!(unstaged.all(|volume| volume == "handle-1"));
    assert_eq!(on.stages()[1].volume_id, "handle-2");
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_over_half_a_file() {
    let on = Cluster::new();
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.stop().await;
    let mount = on.published("a", "pv");
    for dir in [mount.parent().unwrap(), &on.staging()] {
        fs::write(dir.join("vol_data.json"), "{\"driverName\":").unwrap();
    }
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    until("what was not known to be ready", 60 * SECOND, || {
        on.driver.verbs() == ["Stage", "Publish", "Stage", "Publish"]
    })
    .await;
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    until("the unstaging", 300 * SECOND, || {
        on.driver.verbs().ends_with(&["Unpublish", "Unstage"])
    })
    .await;
    assert!(!on.staging().exists());
}

#[tokio::test(start_paused = true)]
async fn what_is_a_drivers_own_is_left() {
    let on = Cluster::new();
    let own = on
        .path("plugins/kubernetes.io/csi")
        .join(DRIVER)
        .join("cache");
    fs::create_dir_all(&own).unwrap();
    let kubelet = on.node.start();
    sleep(600 * SECOND).await;
    assert!(own.exists());
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn when_the_node_shuts_down_those_who_unmount_end_after_what_is_mounted() {
    let on = Cluster::new();
    let _driver = on.serve();
    let login = FakeLogin::new();
    let kubelet = on
        .node
        .start_under(shutdown::options(&on.node), login.clone());
    kubelet.add(claimed("a")).await;
    kubelet.add(shutdown::pod_of("critical", i32::MAX, 5)).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.until_phase("critical", "Running", SECOND).await;
    login.until_held_up().await;
    on.driver.fail("Unpublish", Status::unavailable("wait"));
    login.shut_down(true);
    kubelet.until_phase("a", "Failed", 5 * SECOND).await;
    sleep(5 * SECOND).await;
    assert_eq!(kubelet.phase("critical"), "Running");
    on.driver.clear_faults();
    kubelet.until_phase("critical", "Failed", 10 * SECOND).await;
    assert!(on.driver.verbs().contains(&"Unpublish"));
    kubelet.stop().await;
}
