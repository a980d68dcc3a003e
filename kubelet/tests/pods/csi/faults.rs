//! Every call of a driver fails in every way, while the kubelet keeps running or is killed. In the
//! end no volume is staged, published or attached without a pod, and its data is intact.

use std::{fs, sync::Arc};

use fake_csi::Fault;
use k8s_openapi::api::core::v1::Pod;
use kubelet::kubelet::Kubelet;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::{Cluster, DRIVER, claimed, claimed_device, gone};
use crate::node::{SECOND, until};

/// The volume's name in the node's status.
const ATTACHED: &str = "kubernetes.io/csi/d.example.com^handle-1";
/// printf handle-1d.example.comnode | sha256sum
const ATTACHMENT: &str = "csi-8dacb94c639d43bfcc0fe899bab694270688cf06886ffc2da50cbc124b5bcb11";

/// Attaches the volume while a pod wants it. Detaches it once no pod wants it and the node no
/// longer reports it as in use.
#[derive(Default)]
struct Controller {
    kubelet: Mutex<Option<Kubelet>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_wanted: bool,
    is_attached: bool,
    /// State left on the node when the volume was detached.
    wrongs: Vec<String>,
}

impl Controller {
    fn start(self: &Arc<Self>, on: &Arc<Cluster>) -> AbortOnDropHandle<()> {
        let (controller, on) = (Arc::clone(self), Arc::clone(on));
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut in_use = Vec::new();
            loop {
                let kubelet = controller.kubelet.lock().clone();
                if let Some(now) = kubelet.and_then(|kubelet| kubelet.volumes_in_use()) {
                    in_use = now;
                }
                controller.look(&on, &in_use);
                sleep(SECOND).await;
            }
        }))
    }

    fn look(&self, on: &Cluster, in_use: &[String]) {
        let mut state = self.state.lock();
        let was_attached = state.is_attached;
        state.is_attached = state.is_wanted || (was_attached && !in_use.is_empty());
        if was_attached && !state.is_attached {
            state.wrongs.extend(on.driver.left());
        }
        let attached = match state.is_attached {
            true => json!([{"name": ATTACHED, "devicePath": ""}]),
            false => json!([]),
        };
        let status = json!({"volumesInUse": in_use, "volumesAttached": attached});
        let node = json!({"metadata": {"name": "node"}, "status": status});
        on.objects.put("node", node);
        if state.is_attached {
            let attachment = json!({
                "metadata": {"name": ATTACHMENT},
                "spec": {
                    "attacher": DRIVER, "nodeName": "node",
                    "source": {"persistentVolumeName": "pv"}
                },
                "status": {"attached": true}
            });
            on.objects.put("volumeattachment", attachment);
        } else {
            on.objects.remove("volumeattachment", "", ATTACHMENT);
        }
    }

    fn want(&self, is_wanted: bool) {
        self.state.lock().is_wanted = is_wanted;
    }
}

#[derive(Clone, Debug)]
struct Case {
    verb: &'static str,
    fault: Fault,
    is_killed: bool,
    is_device: bool,
}

impl Case {
    fn pod(&self, name: &str) -> Pod {
        match self.is_device {
            true => claimed_device(name),
            false => claimed(name),
        }
    }

    async fn run(&self) {
        let on = Arc::new(Cluster::new());
        on.put_driver(json!({}));
        let mode = match self.is_device {
            true => "Block",
            false => "Filesystem",
        };
        let knows = if self.verb == "Expand" { "1Gi" } else { "2Gi" };
        let volume = json!({"volumeMode": mode, "capacity": {"storage": "2Gi"}});
        on.put_volume(volume, knows);
        let data = on.node.dir.path().join("data/handle-1");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("precious"), "all of it").unwrap();
        let _mounts = on.driver.keep_data_in(data.parent().unwrap());
        let _driver = on.serve();
        let controller = Arc::<Controller>::default();
        let _controlling = controller.start(&on);
        let mut kubelet = on.node.start();
        *controller.kubelet.lock() = Some(kubelet.kubelet.clone());

        let comes = matches!(self.verb, "Stage" | "Publish" | "Expand");
        controller.want(true);
        if !comes {
            kubelet.add(self.pod("a")).await;
            kubelet.until_phase("a", "Running", 300 * SECOND).await;
        }
        on.driver.fault(self.verb, self.fault.clone());
        if comes {
            kubelet.add(self.pod("a")).await;
        } else {
            kubelet.remove(self.pod("a")).await;
        }
        until("the call", 300 * SECOND, || {
            on.driver.verbs().contains(&self.verb)
        })
        .await;
        if self.is_killed {
            kubelet.stop().await;
            kubelet = on.node.start();
            *controller.kubelet.lock() = Some(kubelet.kubelet.clone());
        } else if comes {
            kubelet.remove(self.pod("a")).await;
        }
        controller.want(false);
        sleep(5 * SECOND).await;
        on.driver.clear_faults();
        gone(&kubelet, &on, "a").await;
        let is_over = || on.driver.left().is_empty() && !controller.state.lock().is_attached;
        until("everything to be given back", 900 * SECOND, is_over).await;
        // After other faults the call may have taken effect; `Aborted` means that it is pending.
        let is_final = matches!(&self.fault, Fault::Fail(status) if status.code() != Code::Aborted);
        if !is_final {
            on.assert_undone("Stage", "Unstage");
            on.assert_undone("Publish", "Unpublish");
        }

        controller.want(true);
        kubelet.add(self.pod("b")).await;
        kubelet.until_phase("b", "Running", 300 * SECOND).await;
        if !self.is_device {
            let seen = on.published("b", "pv").join("precious");
            assert_eq!(fs::read_to_string(seen).unwrap(), "all of it");
        }
        kubelet.remove(self.pod("b")).await;
        gone(&kubelet, &on, "b").await;
        controller.want(false);
        until("everything to be given back again", 900 * SECOND, is_over).await;
        assert_eq!(on.driver.wrongs(), [""; 0]);
        assert_eq!(controller.state.lock().wrongs, [""; 0]);
        assert_eq!(
            fs::read_to_string(data.join("precious")).unwrap(),
            "all of it"
        );
        kubelet.stop().await;
    }
}

impl Cluster {
    /// The last such call of the driver must have been followed by a call that undoes it.
    fn assert_undone(&self, done: &str, undone: &str) {
        let verbs = self.driver.verbs();
        let last = |of: &str| verbs.iter().rposition(|verb| *verb == of);
        assert!(last(done) <= last(undone), "{verbs:?}");
    }
}

/// Runs all cases of one call.
async fn table(verb: &'static str) {
    for fault in [
        Fault::Fail(Status::internal("no")),
        Fault::Fail(Status::aborted("an operation is pending")),
        Fault::Hang,
        Fault::Disconnect,
        Fault::LoseAnswer,
    ] {
        for is_device in [false, true] {
            for is_killed in [false, true] {
                let case = Case {
                    verb,
                    fault: fault.clone(),
                    is_killed,
                    is_device,
                };
                println!("{case:?}");
                timeout(3600 * SECOND, case.run()).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn staging_that_goes_wrong_leaves_nothing() {
    table("Stage").await;
}

#[tokio::test(start_paused = true)]
async fn publishing_that_goes_wrong_leaves_nothing() {
    table("Publish").await;
}

#[tokio::test(start_paused = true)]
async fn expanding_that_goes_wrong_leaves_nothing() {
    table("Expand").await;
}

#[tokio::test(start_paused = true)]
async fn unpublishing_that_goes_wrong_leaves_nothing() {
    table("Unpublish").await;
}

#[tokio::test(start_paused = true)]
async fn unstaging_that_goes_wrong_leaves_nothing() {
    table("Unstage").await;
}
