//! Devices in the engine's terms.

use bollard::models::{DeviceMapping, DeviceRequest};
use cri_proto::runtime::v1::{CdiDevice, Device};

use crate::{Error, engine::Connection};

/// Converts device mappings of the node.
///
/// # Errors
/// `InvalidArgument` naming the device's field.
pub(super) fn of_node(devices: Vec<Device>) -> Result<Vec<DeviceMapping>, Error> {
    let convert = |(index, device): (usize, Device)| {
        let bad = device
            .permissions
            .chars()
            .any(|c| !matches!(c, 'r' | 'w' | 'm'));
        if bad {
            return Err(Error::invalid(
                format!("config.devices[{index}].permissions"),
                format!("{:?}; allowed: r, w, m", device.permissions),
            ));
        }
        Ok(DeviceMapping {
            path_on_host: Some(device.host_path),
            path_in_container: Some(device.container_path),
            cgroup_permissions: Some(device.permissions),
        })
    };
    devices.into_iter().enumerate().map(convert).collect()
}

/// Requests CDI devices by their qualified names.
///
/// # Errors
/// `InvalidArgument` naming the device; `Unsupported` if the engine is too old.
pub(super) fn cdi(
    devices: Vec<CdiDevice>,
    engine: &Connection,
) -> Result<Vec<DeviceRequest>, Error> {
    const FIELD: &str = "config.CDI_devices";
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    if !engine.serves(1, 44) {
        let reason = "CDI devices require a Docker engine of API 1.44 (Docker 25) or newer";
        return Err(Error::unsupported(FIELD, reason));
    }
    let names = devices.into_iter().enumerate().map(|(index, device)| {
        let qualified = device
            .name
            .split_once('=')
            .is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty());
        if qualified {
            return Ok(device.name);
        }
        let reason = format!("{:?} is not <vendor>/<class>=<device>", device.name);
        Err(Error::invalid(format!("{FIELD}[{index}].name"), reason))
    });
    Ok(vec![DeviceRequest {
        driver: Some("cdi".into()),
        device_ids: Some(names.collect::<Result<_, _>>()?),
        ..Default::default()
    }])
}
