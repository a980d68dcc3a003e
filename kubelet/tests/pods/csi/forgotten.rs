//! Drivers that lost their state because they were killed before they wrote it. The kubelet leaves
//! nothing of their volumes behind, and keeps track of everything that still exists.

use std::fs;

use fake_csi::{Fault, Mounts};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;

use super::{Cluster, claimed, claimed_device, gone};
use crate::node::{Running, SECOND, until};

/// A running pod with a volume that contains data.
struct Setup {
    on: Cluster,
    kubelet: Running,
    is_device: bool,
    _mounts: Mounts,
    _driver: fake_csi::Serving,
}

impl Setup {
    async fn new(is_device: bool) -> Self {
        let on = Cluster::new();
        let mode = if is_device { "Block" } else { "Filesystem" };
        on.put_volume(json!({"volumeMode": mode}), "1Gi");
        let data = on.node.dir.path().join("data/handle-1");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("precious"), "all of it").unwrap();
        let mounts = on.driver.keep_data_in(data.parent().unwrap());
        let driver = on.serve();
        let kubelet = on.node.start();
        let pod = if is_device { claimed_device } else { claimed };
        kubelet.add(pod("a")).await;
        kubelet.until_phase("a", "Running", 60 * SECOND).await;
        Self {
            on,
            kubelet,
            is_device,
            _mounts: mounts,
            _driver: driver,
        }
    }

    async fn remove_pod(&self) {
        let pod = if self.is_device {
            claimed_device
        } else {
            claimed
        };
        self.kubelet.remove(pod("a")).await;
    }

    async fn until_called(&self, verb: &str) {
        let called = || self.on.driver.verbs().contains(&verb);
        until("the call", 60 * SECOND, called).await;
    }

    /// Waits until nothing is left of the pod or of the volume's staging.
    async fn until_nothing_is_left(&self) {
        gone(&self.kubelet, &self.on, "a").await;
        let device = match self.is_device {
            true => self.on.path("plugins/kubernetes.io/csi/volumeDevices/pv"),
            false => self.on.staging(),
        };
        until("the device's end", 300 * SECOND, || !device.exists()).await;
        assert_eq!(self.mounts(), [""; 0]);
        let data = self.on.node.dir.path().join("data/handle-1/precious");
        assert_eq!(fs::read_to_string(data).unwrap(), "all of it");
    }

    /// The mount points below the kubelet's directory.
    fn mounts(&self) -> Vec<String> {
        let root = self.on.path("").display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let below = targets.filter(|target| target.starts_with(&root));
        below.map(str::to_owned).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_its_driver_has_deleted_is_given_back() {
    for verb in ["Unpublish", "Unstage"] {
        for is_device in [false, true] {
            println!("{verb}, device: {is_device}");
            let setup = Setup::new(is_device).await;
            // The first call deletes the volume but its answer is lost; ephemeral volumes are
            // deleted like this when they are unpublished.
            setup.on.driver.fault(verb, Fault::LoseAnswer);
            setup.remove_pod().await;
            setup.until_called(verb).await;
            setup.on.driver.clear_faults();
            setup
                .on
                .driver
                .fail(verb, Status::not_found("no such volume"));
            setup.until_nothing_is_left().await;
            setup.kubelet.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_does_not_know_and_is_there_is_kept() {
    for is_device in [false, true] {
        let setup = Setup::new(is_device).await;
        let unknown = Status::not_found("no such volume");
        setup.on.driver.fail("Unpublish", unknown);
        setup.remove_pod().await;
        setup.until_called("Unpublish").await;
        sleep(100 * SECOND).await;
        assert!(setup.on.path("pods/a").exists());
        assert!(!setup.on.driver.verbs().contains(&"Unstage"));
        setup.on.driver.clear_faults();
        setup.until_nothing_is_left().await;
        setup.kubelet.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_forgets_to_unmount_is_unmounted() {
    for verb in ["Unpublish", "Unstage"] {
        for is_device in [false, true] {
            println!("{verb}, device: {is_device}");
            let setup = Setup::new(is_device).await;
            setup.on.driver.fault(verb, Fault::Forget);
            setup.remove_pod().await;
            setup.until_nothing_is_left().await;
            setup.kubelet.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_the_storage_does_not_have_is_waited_for() {
    for is_device in [false, true] {
        let on = Cluster::new();
        let mode = if is_device { "Block" } else { "Filesystem" };
        on.put_volume(json!({"volumeMode": mode}), "1Gi");
        let _driver = on.serve();
        on.driver.set_existing("handle-1", false);
        let kubelet = on.node.start();
        let pod = if is_device { claimed_device } else { claimed };
        kubelet.add(pod("a")).await;
        until("the call", 60 * SECOND, || {
            on.driver.verbs().contains(&"Stage")
        })
        .await;
        sleep(60 * SECOND).await;
        assert_eq!(kubelet.phase("a"), "Pending");
        // Nothing was staged, so there is nothing to undo.
        kubelet.remove(pod("a")).await;
        gone(&kubelet, &on, "a").await;
        assert_eq!(on.driver.left(), [""; 0]);

        kubelet.add(pod("b")).await;
        sleep(30 * SECOND).await;
        on.driver.set_existing("handle-1", true);
        kubelet.until_phase("b", "Running", 150 * SECOND).await;
        kubelet.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_deleted_while_a_pod_uses_it_holds_no_pod_up() {
    let setup = Setup::new(false).await;
    setup.on.driver.fault("Unpublish", Fault::Forget);
    setup.remove_pod().await;
    setup.until_called("Unpublish").await;
    setup.on.driver.clear_faults();
    setup.on.driver.set_existing("handle-1", false);
    setup.until_nothing_is_left().await;
    setup.kubelet.stop().await;
}
