//! The health of the devices of claims, by their drivers' reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use atomic_file::Durability;
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_host::{clock, repeatable::blocking};
use kubelet_pod_spec::identity::PodUid;
use tracing::warn;

use super::DraManager;
use crate::{
    health::{self, DeviceHealth, DeviceName},
    pod_claims,
};

impl DraManager {
    /// The health of a container's devices, by the name of the claim and request.
    pub fn health_of(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> BTreeMap<String, Vec<DeviceHealth>> {
        let mut health = BTreeMap::new();
        let (claims, reports, now) = (self.claims(), self.health(), clock::now());
        for (name, request, key) in pod_claims::named_by(pod, container) {
            let Some(claim) = claims.get(&key) else {
                continue;
            };
            let request_name = request.unwrap_or_default();
            let mut devices = Vec::<DeviceHealth>::new();
            for (driver, device) in claim.devices().filter(|(_, it)| it.is_of(request_name)) {
                let id = device.cdi.first().cloned();
                let id = id.unwrap_or_else(|| format!("{driver}/{}/{}", device.pool, device.name));
                if devices.iter().any(|known| known.id == id) {
                    continue;
                }
                let (health, message) = reports.of(driver, &device.pool, &device.name, now);
                devices.push(DeviceHealth {
                    id,
                    health,
                    message: message.map(str::to_owned),
                });
            }
            if !devices.is_empty() {
                health.insert(pod_claims::resource_name(name, request), devices);
            }
        }
        health
    }

    /// Waits until the health of devices changes, and returns the pods that have one of them.
    pub async fn changed_pods(&self) -> BTreeSet<PodUid> {
        loop {
            let changed = std::mem::take(&mut *self.0.changed_pods.lock());
            if !changed.is_empty() {
                return changed.iter().map(|uid| PodUid::from(&**uid)).collect();
            }
            self.0.health_changed.notified().await;
        }
    }

    /// Notes that the health of a driver's devices has changed.
    pub(crate) async fn health_changed(&self, driver: &str, devices: &[DeviceName]) {
        if devices.is_empty() {
            return;
        }
        let pods: Vec<String> = {
            let claims = self.claims();
            let pods = devices.iter();
            let pods = pods.flat_map(|(pool, name)| claims.pods_with(driver, pool, name));
            pods.cloned().collect()
        };
        if !pods.is_empty() {
            self.0.changed_pods.lock().extend(pods);
            self.0.health_changed.notify_one();
        }
        let turn = Arc::clone(&self.0.saving_health).lock_owned().await;
        let (content, path) = (self.health().content(), self.path(health::FILE));
        let write = move || {
            let _turn = turn;
            let content = content.map_err(io::Error::other)?;
            atomic_file::replace(&path, content.as_bytes(), 0o600, Durability::Unsynced)
        };
        if let Err(error) = blocking(write)
            .await
            .unwrap_or_else(|error| Err(error.into()))
        {
            warn!(%error, "cannot save the health of devices");
        }
    }
}
