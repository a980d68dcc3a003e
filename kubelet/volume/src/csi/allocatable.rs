//! Keeps up to date how many volumes of each driver the node can have. Drivers tell it when they
//! register; the number changes when, for example, other devices are attached to a virtual machine.
//! Only drivers whose `CSIDriver` has `nodeAllocatableUpdatePeriodSeconds` are asked again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use kubelet_api_client::objects::Objects;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    client::CsiError,
    csi_node::{CsiNodeError, CsiNodeKeeper, DriverInfo},
    driver_store::{DriverStore, Question},
    policy::Policy,
};

/// Between two looks at the drivers' settings; the shortest period that the API server accepts.
const LOOK: Duration = Duration::from_secs(10);

/// Asks drivers again, and publishes the result in the `CSINode`.
#[derive(Debug)]
pub struct AllocatableKeeper {
    /// The drivers.
    pub drivers: Arc<DriverStore>,
    /// Publishes the result.
    pub node: Arc<CsiNodeKeeper>,
    /// The drivers' settings.
    pub objects: Arc<dyn Objects>,
}

/// Why a driver's number of volumes is not up to date.
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    Node(#[from] CsiNodeError),
}

/// When a driver is asked next.
struct Schedule {
    period: Duration,
    next: Instant,
}

impl AllocatableKeeper {
    /// Asks the drivers in their periods, and at once if a volume could not be attached because the
    /// node has no place, until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        let keep = async {
            let mut schedules = BTreeMap::new();
            loop {
                let questions = self.drivers.take_questions();
                self.update_due(&mut schedules, &questions).await;
                drop(questions);
                tokio::select! {
                    () = sleep(LOOK) => {}
                    () = self.drivers.has_questions() => {}
                }
            }
        };
        cancel.run_until_cancelled(keep).await;
    }

    async fn update_due(&self, schedules: &mut BTreeMap<String, Schedule>, questions: &[Question]) {
        let names = self.drivers.names();
        schedules.retain(|name, _| names.contains(name));
        let mut due = Vec::new();
        for name in names {
            // If the settings are unknown for the moment, the last ones count.
            let period = match Policy::of(&name, &*self.objects).await {
                Ok(policy) => policy.allocatable_period(),
                Err(_) => schedules.get(&name).map(|schedule| schedule.period),
            };
            let Some(period) = period else {
                schedules.remove(&name);
                continue;
            };
            let now = Instant::now();
            let known = schedules.get(&name).filter(|known| known.period == period);
            let is_due = known.is_some_and(|known| known.next <= now);
            let is_asked = questions.iter().any(|question| question.driver == name);
            if is_due || is_asked || known.is_none() {
                let next = now + period;
                schedules.insert(name.clone(), Schedule { period, next });
            }
            if is_due || is_asked {
                due.push(name);
            }
        }
        // A driver that hangs does not keep others from their turn.
        join_all(due.iter().map(|name| self.update_or_report(name))).await;
    }

    async fn update_or_report(&self, name: &str) {
        match self.update(name).await {
            Ok(()) => debug!(driver = name, "asked the CSI driver how many volumes fit"),
            Err(error) => warn!(
                driver = name, %error,
                "cannot update how many volumes of the CSI driver the node can have"
            ),
        }
    }

    async fn update(&self, name: &str) -> Result<(), UpdateError> {
        let info = self.drivers.client(name)?.info().await?;
        let info = DriverInfo::new(name, info);
        Ok(self.node.update(&info).await?)
    }
}

#[cfg(test)]
mod tests {
    use fake_csi::FakeCsi;
    use kubelet_api_client::objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
    use kubelet_plugin_manager::{Plugin, PluginHandler as _};
    use serde_json::{Value, json};
    use test_api_server::by_path::ByPath;
    use tokio::sync::watch;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::csi::CsiRegistration;

    const DRIVER: &str = "d.example.com";
    const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
    const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

    fn put_driver(server: &ByPath, period: Value) {
        let spec = json!({"nodeAllocatableUpdatePeriodSeconds": period});
        server.put(DRIVERS, json!({"metadata": {"name": DRIVER}, "spec": spec}));
    }

    fn published(server: &ByPath) -> Value {
        let node = server.object(CSI_NODES, "n").unwrap();
        node["spec"]["drivers"][0]["allocatable"]["count"].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn drivers_are_asked_in_their_period_and_when_the_node_is_full() {
        let second = Duration::from_secs(1);
        let server = ByPath::new();
        server.put("/api/v1/nodes", json!({"metadata": {"name": "n"}}));
        let node = server.object("/api/v1/nodes", "n").unwrap();
        let node = watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap())));
        let keeper = CsiNodeKeeper::new(server.client_of("n"), "n", node.subscribe());
        let cancel = CancellationToken::new();
        let keeper = AllocatableKeeper {
            drivers: Arc::default(),
            node: Arc::new(keeper),
            objects: Arc::new(ApiObjects::new(ApiObjectsParts {
                client: server.client_of("n"),
                node: node.subscribe(),
                change_detection: ChangeDetection::Watch,
                sync_frequency: 60 * second,
                tasks: TaskTracker::new(),
                cancel: cancel.clone(),
            })),
        };
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join("csi.sock");
        let driver = FakeCsi::new(DRIVER);
        let _serving = driver.serve(&dir.path().join("reg.sock"), &endpoint);
        driver.set_max_volumes(5);
        put_driver(&server, Value::Null);
        let registration = CsiRegistration {
            drivers: Arc::clone(&keeper.drivers),
            node: Some(Arc::clone(&keeper.node)),
        };
        let plugin = Plugin {
            name: DRIVER.to_owned(),
            endpoint,
            versions: vec!["1.0.0".to_owned()],
        };
        registration.register(&plugin).await.unwrap();
        assert_eq!(published(&server), 5);

        let drivers = Arc::clone(&keeper.drivers);
        let keeping = tokio::spawn({
            let cancel = cancel.clone();
            async move { keeper.run(cancel).await }
        });
        driver.set_max_volumes(4);
        sleep(600 * second).await;
        assert_eq!(published(&server), 5, "the driver need not be asked");
        drivers.ask_again(DRIVER).await;
        assert_eq!(published(&server), 5, "the driver need not be asked");

        put_driver(&server, json!(100));
        sleep(90 * second).await;
        assert_eq!(published(&server), 5, "not yet");
        sleep(60 * second).await;
        assert_eq!(published(&server), 4);
        driver.set_max_volumes(3);
        drivers.ask_again(DRIVER).await;
        assert_eq!(published(&server), 3, "before the answer");
        driver.set_max_volumes(2);
        sleep(120 * second).await;
        assert_eq!(published(&server), 2);

        registration.deregister(&plugin);
        driver.set_max_volumes(1);
        sleep(300 * second).await;
        assert_eq!(published(&server), 2, "the driver is gone");
        cancel.cancel();
        keeping.await.unwrap();
    }
}
