//! The file with the claims that pods use, in upstream's format (`dra_manager_state`).

use std::collections::{BTreeMap, BTreeSet};

use flate2::Crc;
use serde::{Deserialize, Serialize};

use crate::claims::{ClaimDevice, ClaimKey, PreparedClaim};

pub(crate) const FILE: &str = "dra_manager_state";

const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// Why a file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidFile {
    #[error("it is invalid: {0}")]
    Format(String),
    #[error("its checksum is {found}, and should be {computed}: it was changed or damaged")]
    Checksum { found: u32, computed: u32 },
    #[error("it is a {kind:?} of {api_version:?}, and should be a {KIND:?} of {API_VERSION:?}")]
    Kind { kind: String, api_version: String },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ClaimState {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    claim_name: String,
    namespace: String,
    /// A set, as Go writes it.
    #[serde(rename = "PodUIDs")]
    pod_uids: Option<BTreeMap<String, Empty>>,
    driver_state: Option<BTreeMap<String, DriverState>>,
}

#[derive(Serialize, Deserialize)]
struct Empty {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    devices: Option<Vec<DeviceState>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceState {
    pool_name: String,
    device_name: String,
    #[serde(rename = "ShareID")]
    share_id: Option<String>,
    request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi_device_ids: Option<Vec<String>>,
}

/// The claims of a file.
pub(crate) fn parse(content: &[u8]) -> Result<Vec<PreparedClaim>, InvalidFile> {
    let format = |error: serde_json::Error| InvalidFile::Format(error.to_string());
    let file: File = serde_json::from_slice(content).map_err(format)?;
    let computed = checksum(&file.data);
    if file.checksum != computed {
        let found = file.checksum;
        return Err(InvalidFile::Checksum { found, computed });
    }
    let data: Data = serde_json::from_str(&file.data).map_err(format)?;
    if data.kind != KIND || data.api_version != API_VERSION {
        let Data {
            kind, api_version, ..
        } = data;
        return Err(InvalidFile::Kind { kind, api_version });
    }
    let claims = data.claims.into_iter().flatten();
    Ok(claims.map(PreparedClaim::from).collect())
}

/// The content of the file of these claims.
pub(crate) fn content<'a>(
    claims: impl Iterator<Item = &'a PreparedClaim>,
) -> serde_json::Result<String> {
    let data = serde_json::to_string(&Data {
        kind: KIND.to_owned(),
        api_version: API_VERSION.to_owned(),
        claims: Some(claims.map(ClaimState::from).collect()),
    })?;
    let checksum = checksum(&data);
    serde_json::to_string(&File { data, checksum })
}

/// CRC-32, as IEEE 802.3 defines it.
fn checksum(data: &str) -> u32 {
    let mut crc = Crc::new();
    crc.update(data.as_bytes());
    crc.sum()
}

impl From<&PreparedClaim> for ClaimState {
    fn from(claim: &PreparedClaim) -> Self {
        let mut pod_uids = BTreeMap::new();
        pod_uids.extend(claim.pods.iter().map(|uid| (uid.clone(), Empty {})));
        let mut driver_state = BTreeMap::new();
        driver_state.extend(claim.drivers.iter().map(|(driver, devices)| {
            let devices = devices.iter().map(DeviceState::from).collect();
            let devices = Some(devices);
            (driver.clone(), DriverState { devices })
        }));
        Self {
            claim_uid: claim.uid.clone(),
            claim_name: claim.key.name.clone(),
            namespace: claim.key.namespace.clone(),
            pod_uids: Some(pod_uids),
            driver_state: Some(driver_state),
        }
    }
}

impl From<ClaimState> for PreparedClaim {
    fn from(state: ClaimState) -> Self {
        let key = ClaimKey {
            namespace: state.namespace,
            name: state.claim_name,
        };
        let mut claim = Self::new(key, &state.claim_uid);
        let mut pods = BTreeSet::new();
        pods.extend(state.pod_uids.into_iter().flatten().map(|(uid, _)| uid));
        claim.pods = pods;
        for (driver, state) in state.driver_state.into_iter().flatten() {
            let devices = state.devices.into_iter().flatten();
            let devices = devices.map(ClaimDevice::from).collect();
            claim.drivers.insert(driver, devices);
        }
        claim
    }
}

impl From<&ClaimDevice> for DeviceState {
    fn from(device: &ClaimDevice) -> Self {
        Self {
            pool_name: device.pool.clone(),
            device_name: device.name.clone(),
            share_id: device.share_id.clone(),
            request_names: Some(device.requests.clone()),
            cdi_device_ids: Some(device.cdi.clone()),
        }
    }
}

impl From<DeviceState> for ClaimDevice {
    fn from(state: DeviceState) -> Self {
        Self {
            pool: state.pool_name,
            name: state.device_name,
            share_id: state.share_id,
            requests: state.request_names.unwrap_or_default(),
            cdi: state.cdi_device_ids.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the format of upstream's kubelet 1.36: Go has encoded structures with the same fields.
    const UPSTREAM: &str = include_str!("../testdata/dra_manager_state");

    #[test]
    fn upstreams_format_is_read() {
        let claims = parse(UPSTREAM.as_bytes()).unwrap();
        assert_eq!(claims.len(), 2);
        let claim = &claims[0];
        assert_eq!((&*claim.key.namespace, &*claim.key.name), ("ns", "shared"));
        assert_eq!(claim.uid, "c-1");
        let pods: Vec<&String> = claim.pods.iter().collect();
        assert_eq!(pods, ["p-1", "p-2"]);
        let expected = ClaimDevice {
            pool: "node".to_owned(),
            name: "gpu-0".to_owned(),
            share_id: Some("s-1".to_owned()),
            requests: vec!["one".to_owned()],
            cdi: vec!["vendor.example/gpu=a<b".to_owned()],
        };
        assert_eq!(claim.drivers["gpu.example"], [expected]);
        assert!(claims[1].drivers["nic.example"].is_empty());
        let again = content(claims.iter()).unwrap();
        assert_eq!(parse(again.as_bytes()).unwrap(), claims);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let changed = UPSTREAM.replacen("gpu-0", "gpu-1", 1);
        let error = parse(changed.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidFile::Checksum { .. }), "{error}");
        let half = &UPSTREAM.as_bytes()[..UPSTREAM.len() / 2];
        assert!(matches!(parse(half), Err(InvalidFile::Format(_))));
        let data = r#"{"kind":"Other","apiVersion":"v2","ClaimInfoStateList":null}"#;
        let file = File {
            data: data.to_owned(),
            checksum: checksum(data),
        };
        let other = serde_json::to_string(&file).unwrap();
        let error = parse(other.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidFile::Kind { .. }), "{error}");
    }
}
