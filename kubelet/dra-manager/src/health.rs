//! The health of devices, as their drivers report it.

use std::{collections::BTreeMap, time::Duration};

use cri_proto::dra_health::v1alpha1 as wire;
use jiff::{SignedDuration, Timestamp};
use kubelet_plugin_manager::message::shortened;
use serde::{Deserialize, Serialize};

/// The file with the reports, in upstream's format.
pub(crate) const FILE: &str = "dra_health_state";

/// For how long a report holds, if it does not say so.
const DEFAULT_LIMIT: Duration = Duration::from_secs(30);
/// The longest name of a pool in the API, in bytes; those of devices are shorter.
const LONGEST_NAME: usize = 253;
/// The most devices of a driver. The API allows 128 in a slice.
const MOST_DEVICES: usize = 16_384;

/// Whether a device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// It works.
    Healthy,
    /// It does not.
    Unhealthy,
    /// The driver has not said so, or not for long.
    Unknown,
}

impl Health {
    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }
}

/// The health of a container's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The device's first CDI device, or driver, pool and name.
    pub id: String,
    /// Its health.
    pub health: Health,
    /// What the driver says about it.
    pub message: Option<String>,
}

/// The pool and the name of a device.
pub(crate) type DeviceName = (String, String);

/// What drivers have reported.
#[derive(Debug, Default)]
pub(crate) struct HealthReports(BTreeMap<String, BTreeMap<DeviceName, Report>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    health: Health,
    message: String,
    at: Timestamp,
    limit: Duration,
}

impl Report {
    /// When the health is unknown again.
    fn ends(&self) -> Timestamp {
        let limit = SignedDuration::try_from(self.limit).unwrap_or(SignedDuration::MAX);
        self.at.saturating_add(limit).unwrap_or(Timestamp::MAX)
    }
}

impl HealthReports {
    /// Adds a report of a driver. Returns the devices whose health has changed.
    pub(crate) fn report(
        &mut self,
        driver: &str,
        devices: Vec<wire::DeviceHealth>,
        now: Timestamp,
    ) -> Vec<DeviceName> {
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut changed = Vec::new();
        for device in devices {
            let health = match device.health() {
                wire::HealthStatus::Healthy => Health::Healthy,
                wire::HealthStatus::Unhealthy => Health::Unhealthy,
                wire::HealthStatus::Unknown => Health::Unknown,
            };
            let limit = match u64::try_from(device.health_check_timeout_seconds) {
                Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
                _ => DEFAULT_LIMIT,
            };
            let name = device.device.unwrap_or_default();
            let name = (name.pool_name, name.device_name);
            let is_name = |name: &str| (1..=LONGEST_NAME).contains(&name.len());
            if !is_name(&name.0) || !is_name(&name.1) {
                continue;
            }
            let report = Report {
                health,
                message: shortened(device.message),
                at: now,
                limit,
            };
            let before = known.get(&name);
            if before.is_none() && known.len() >= MOST_DEVICES {
                continue;
            }
            let is_same = before
                .is_some_and(|it| (it.health, &it.message) == (report.health, &report.message));
            if !is_same {
                changed.push(name.clone());
            }
            known.insert(name, report);
        }
        changed
    }

    /// Forgets the reports of a driver that are too old, and returns their devices.
    pub(crate) fn expire(&mut self, driver: &str, now: Timestamp) -> Vec<DeviceName> {
        let mut old = Vec::new();
        if let Some(known) = self.0.get_mut(driver) {
            known.retain(|name, report| {
                let holds = now <= report.ends();
                if !holds {
                    old.push(name.clone());
                }
                holds
            });
        }
        old
    }

    /// For how long all reports of a driver hold.
    pub(crate) fn hold_for(&self, driver: &str, now: Timestamp) -> Option<Duration> {
        let ends = self.0.get(driver)?.values().map(Report::ends).min()?;
        Some(Duration::try_from(ends.duration_since(now)).unwrap_or_default())
    }

    /// Forgets all reports of a driver, and returns their devices.
    pub(crate) fn clear(&mut self, driver: &str) -> Vec<DeviceName> {
        let known = self.0.remove(driver).unwrap_or_default();
        known.into_keys().collect()
    }

    /// The health of a device, and what the driver says about it.
    pub(crate) fn of(
        &self,
        driver: &str,
        pool: &str,
        name: &str,
        now: Timestamp,
    ) -> (Health, Option<&str>) {
        let device = (pool.to_owned(), name.to_owned());
        let report = self.0.get(driver).and_then(|known| known.get(&device));
        match report.filter(|report| now <= report.ends()) {
            Some(report) => {
                let message = Some(&*report.message).filter(|message| !message.is_empty());
                (report.health, message)
            }
            None => (Health::Unknown, None),
        }
    }

    /// The reports of a file; none if it is damaged: the drivers report again.
    pub(crate) fn parse(content: &[u8]) -> Self {
        let file: BTreeMap<String, DriverState> =
            serde_json::from_slice(content).unwrap_or_default();
        let mut reports = BTreeMap::new();
        for (driver, state) in file {
            let mut known = BTreeMap::new();
            for device in state.devices.into_iter().flat_map(BTreeMap::into_values) {
                let name = (device.pool_name, device.device_name);
                let report = Report {
                    health: device.health,
                    message: shortened(device.message),
                    at: device.last_updated,
                    limit: match u64::try_from(device.health_check_timeout) {
                        Ok(nanos) if nanos > 0 => Duration::from_nanos(nanos),
                        _ => DEFAULT_LIMIT,
                    },
                };
                known.insert(name, report);
            }
            reports.insert(driver, known);
        }
        Self(reports)
    }

    /// The content of the file.
    pub(crate) fn content(&self) -> serde_json::Result<String> {
        let mut file = BTreeMap::new();
        for (driver, known) in &self.0 {
            let mut devices = BTreeMap::new();
            for ((pool, name), report) in known {
                let state = DeviceState {
                    pool_name: pool.clone(),
                    device_name: name.clone(),
                    health: report.health,
                    last_updated: report.at,
                    health_check_timeout: i64::try_from(report.limit.as_nanos())
                        .unwrap_or(i64::MAX),
                    message: report.message.clone(),
                };
                devices.insert(format!("{pool}/{name}"), state);
            }
            let devices = Some(devices);
            file.insert(driver.clone(), DriverState { devices });
        }
        serde_json::to_string(&file)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    devices: Option<BTreeMap<String, DeviceState>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceState {
    pool_name: String,
    device_name: String,
    health: Health,
    last_updated: Timestamp,
    /// Nanoseconds.
    health_check_timeout: i64,
    #[serde(default)]
    message: String,
}

#[cfg(test)]
mod tests {
    use kubelet_plugin_manager::message::LONGEST;

    use super::*;

    fn report(health: wire::HealthStatus, seconds: i64, message: &str) -> wire::DeviceHealth {
        wire::DeviceHealth {
            device: Some(wire::DeviceIdentifier {
                pool_name: "p".to_owned(),
                device_name: "d".to_owned(),
            }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
            message: message.to_owned(),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_report_holds_for_its_time() {
        let mut reports = HealthReports::default();
        let healthy = || vec![report(wire::HealthStatus::Healthy, 0, "")];
        let names = [("p".to_owned(), "d".to_owned())];
        assert_eq!(reports.report("x", healthy(), at(0)), names);
        assert!(reports.report("x", healthy(), at(10)).is_empty());
        let of = |reports: &HealthReports, now| reports.of("x", "p", "d", at(now)).0;
        assert_eq!(of(&reports, 40), Health::Healthy);
        assert_eq!(of(&reports, 41), Health::Unknown);
        assert_eq!(reports.hold_for("x", at(15)), Some(Duration::from_secs(25)));
        assert!(reports.expire("x", at(40)).is_empty());
        assert_eq!(reports.expire("x", at(41)), names);
        assert_eq!(reports.hold_for("x", at(41)), None);

        let sick = report(wire::HealthStatus::Unhealthy, 3600, "hot");
        assert_eq!(reports.report("x", vec![sick.clone()], at(50)), names);
        let read = HealthReports::parse(reports.content().unwrap().as_bytes());
        let expected = (Health::Unhealthy, Some("hot"));
        assert_eq!(read.of("x", "p", "d", at(3650)), expected);
        assert_eq!(read.of("x", "p", "d", at(3651)).0, Health::Unknown);
        // The time of the last report is not a change.
        assert!(reports.report("x", vec![sick], at(60)).is_empty());
        assert_eq!(reports.clear("x").len(), 1);
        assert!(reports.clear("x").is_empty());
    }

    #[test]
    fn messages_and_devices_are_bounded() {
        let mut reports = HealthReports::default();
        let long = "é".repeat(LONGEST);
        let long = report(wire::HealthStatus::Unhealthy, i64::MAX, &long);
        reports.report("x", vec![long], at(0));
        let (_, message) = reports.of("x", "p", "d", at(1));
        let message = message.unwrap();
        assert!(message.len() <= LONGEST && message.ends_with("é..."));
        let many = (0..=MOST_DEVICES).map(|n| {
            let mut one = report(wire::HealthStatus::Healthy, 0, "");
            one.device = Some(wire::DeviceIdentifier {
                pool_name: "p".to_owned(),
                device_name: n.to_string(),
            });
            one
        });
        let changed = reports.report("x", many.collect(), at(0));
        assert_eq!(changed.len(), MOST_DEVICES - 1);
        for name in ["", &"x".repeat(254)] {
            let mut one = report(wire::HealthStatus::Healthy, 0, "");
            one.device = Some(wire::DeviceIdentifier {
                pool_name: "p".to_owned(),
                device_name: name.to_owned(),
            });
            assert!(reports.report("y", vec![one], at(0)).is_empty());
        }
    }

    #[test]
    fn upstreams_format_is_read() {
        let file = r#"{"gpu.example":{"Devices":{"p/d":{"PoolName":"p","DeviceName":"d",
            "Health":"Unhealthy","LastUpdated":"2027-01-15T08:00:00.123456789Z",
            "HealthCheckTimeout":30000000000,"Message":"hot"}}},"nic.example":{"Devices":null}}"#;
        let reports = HealthReports::parse(file.as_bytes());
        let now = "2027-01-15T08:00:30Z".parse().unwrap();
        let expected = (Health::Unhealthy, Some("hot"));
        assert_eq!(reports.of("gpu.example", "p", "d", now), expected);
        assert!(HealthReports::parse(b"{").0.is_empty());
    }
}
