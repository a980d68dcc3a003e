//! Devices in the engine's terms.

use std::collections::BTreeMap;

use bollard::models::{DeviceMapping, DeviceRequest};
use cri_proto::runtime::v1::{CdiDevice, Device};

use crate::{Error, engine::Connection};

/// The prefix of annotations that request CDI devices.
const CDI_ANNOTATION: &str = "cdi.k8s.io/";

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

/// Requests CDI devices by their qualified names, which device plugins give in a field or, like
/// earlier ones, in `annotations` of the container.
///
/// # Errors
/// `InvalidArgument` naming the device; `Unsupported` if the engine is too old.
pub(super) fn cdi(
    devices: Vec<CdiDevice>,
    annotations: &BTreeMap<String, String>,
    engine: &Connection,
) -> Result<Vec<DeviceRequest>, Error> {
    let names = cdi_names(devices, annotations)?;
    let Some((_, field)) = names.first() else {
        return Ok(Vec::new());
    };
    if !engine.serves(1, 44) {
        let reason = "CDI devices require a Docker engine of API 1.44 (Docker 25) or newer";
        return Err(Error::unsupported(field, reason));
    }
    Ok(vec![DeviceRequest {
        driver: Some("cdi".into()),
        device_ids: Some(names.into_iter().map(|(name, _)| name).collect()),
        ..Default::default()
    }])
}

/// The qualified names of the requested CDI devices, each once, and the fields that request them.
fn cdi_names(
    devices: Vec<CdiDevice>,
    annotations: &BTreeMap<String, String>,
) -> Result<Vec<(String, String)>, Error> {
    let devices = devices.into_iter().enumerate();
    let devices =
        devices.map(|(index, device)| (device.name, format!("config.CDI_devices[{index}].name")));
    let annotations = annotations.iter();
    let annotated = annotations.filter(|(key, _)| key.starts_with(CDI_ANNOTATION));
    let annotated = annotated.flat_map(|(key, names)| {
        let field = format!("config.annotations[{key:?}]");
        names
            .split(',')
            .map(move |name| (name.to_owned(), field.clone()))
    });
    let mut names: Vec<(String, String)> = Vec::new();
    for (name, field) in devices.chain(annotated) {
        let qualified = name
            .split_once('=')
            .is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty());
        if !qualified {
            let reason = format!("{name:?} is not <vendor>/<class>=<device>");
            return Err(Error::invalid(field, reason));
        }
        if !names.iter().any(|(known, _)| *known == name) {
            names.push((name, field));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdi_devices_come_from_the_field_and_from_annotations() {
        let device = |name: &str| CdiDevice {
            name: name.to_owned(),
        };
        let annotations = [
            ("cdi.k8s.io/plugin_1", "v.example/gpu=0,v.example/gpu=1"),
            ("other", "v.example/gpu=2"),
        ];
        let annotations = annotations.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let devices = vec![device("v.example/gpu=1"), device("v.example/nic=a")];
        let names = cdi_names(devices, &annotations.into()).unwrap();
        let names: Vec<_> = names.iter().map(|(name, _)| &**name).collect();
        let expected = ["v.example/gpu=1", "v.example/nic=a", "v.example/gpu=0"];
        assert_eq!(names, expected);
        let bad = ("cdi.k8s.io/a".to_owned(), "v.example/gpu=0,".to_owned());
        let error = cdi_names(Vec::new(), &[bad].into()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.annotations[\"cdi.k8s.io/a\"]: \"\" is not <vendor>/<class>=<device>"
        );
    }
}
