//! What a container needs to use its devices, as plugins answer it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
};

use cri_proto::deviceplugin::v1beta1::{ContainerAllocateResponse, DeviceSpec};
use prost::Message as _;
use tracing::warn;

/// The longest answer, so that the state file stays readable.
const LONGEST: usize = 256 << 10;

/// What a container needs to use all of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Mounts by their path in the container: the path on the node, and whether it is read-only.
    pub mounts: BTreeMap<String, (String, bool)>,
    /// Device nodes by their path in the container: the path on the node, and the permissions.
    pub nodes: BTreeMap<String, (String, String)>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi: Vec<String>,
}

/// Checks an answer. The runtime would refuse some of this in other words, or take it for something
/// else.
///
/// # Errors
/// The field, and what is wrong with it.
pub(crate) fn check(response: &ContainerAllocateResponse) -> Result<(), String> {
    let length = response.encoded_len();
    if length > LONGEST {
        return Err(format!(
            "container_responses[0]: takes {length} bytes, and at most {LONGEST} are possible"
        ));
    }
    for name in response.envs.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("envs: {name:?} is no name of a variable"));
        }
    }
    let paths = response.mounts.iter().enumerate();
    let paths = paths.map(|(n, it)| ("mounts", n, &it.container_path, &it.host_path));
    let nodes = response.devices.iter().enumerate();
    // Runtimes take the path on the node if there is none in the container.
    let nodes = nodes.map(|(n, it)| ("devices", n, path_inside(it), &it.host_path));
    for (list, index, container, host) in paths.chain(nodes) {
        for (field, path) in [("container_path", container), ("host_path", host)] {
            if !Path::new(path).is_absolute() || path.contains('\0') {
                return Err(format!(
                    "{list}[{index}].{field}: {path:?} is no absolute path"
                ));
            }
        }
    }
    for (index, device) in response.devices.iter().enumerate() {
        let permissions = &device.permissions;
        if !permissions.chars().all(|letter| "rwm".contains(letter)) {
            return Err(format!(
                "devices[{index}].permissions: {permissions:?} has letters other than r, w and m"
            ));
        }
    }
    Ok(())
}

fn path_inside(node: &DeviceSpec) -> &String {
    match node.container_path.is_empty() {
        true => &node.host_path,
        false => &node.container_path,
    }
}

impl ContainerDevices {
    /// Adds an answer of the plugin of `resource`. The first answer wins.
    pub(crate) fn add(&mut self, resource: &str, response: &ContainerAllocateResponse) {
        let conflict = |what: &str, name: &str| {
            warn!(
                resource,
                what, name, "device plugins of a container contradict each other"
            );
        };
        let add_all = |to: &mut BTreeMap<String, String>, what, from: &BTreeMap<String, String>| {
            for (name, value) in from {
                insert(to, name, value.clone(), |name| conflict(what, name));
            }
        };
        add_all(&mut self.variables, "variable", &response.envs);
        add_all(&mut self.annotations, "annotation", &response.annotations);
        for mount in &response.mounts {
            let value = (mount.host_path.clone(), mount.read_only);
            insert(&mut self.mounts, &mount.container_path, value, |name| {
                conflict("mount", name);
            });
        }
        for node in &response.devices {
            let value = (node.host_path.clone(), node.permissions.clone());
            insert(&mut self.nodes, path_inside(node), value, |name| {
                conflict("device", name);
            });
        }
        for device in &response.cdi_devices {
            if !self.cdi.contains(&device.name) {
                self.cdi.push(device.name.clone());
            }
        }
    }
}

fn insert<T: PartialEq>(
    map: &mut BTreeMap<String, T>,
    name: &str,
    value: T,
    conflict: impl FnOnce(&str),
) {
    match map.entry(name.to_owned()) {
        Entry::Vacant(entry) => drop(entry.insert(value)),
        Entry::Occupied(entry) if *entry.get() != value => conflict(name),
        Entry::Occupied(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use cri_proto::deviceplugin::v1beta1::{CdiDevice, DeviceSpec, Mount};

    use super::*;

    fn response() -> ContainerAllocateResponse {
        ContainerAllocateResponse {
            envs: [("A".to_owned(), "1".to_owned())].into(),
            mounts: vec![Mount {
                container_path: "/c".to_owned(),
                host_path: "/h".to_owned(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/c".to_owned(),
                host_path: "/dev/h".to_owned(),
                permissions: "rw".to_owned(),
            }],
            annotations: [("a/b".to_owned(), "1".to_owned())].into(),
            cdi_devices: vec![CdiDevice {
                name: "x.y/gpu=0".to_owned(),
            }],
        }
    }

    #[test]
    fn a_device_without_a_path_in_the_container_keeps_its_own() {
        let mut response = response();
        response.devices[0].container_path = String::new();
        assert_eq!(check(&response), Ok(()));
        let mut devices = ContainerDevices::default();
        devices.add("x.y/gpu", &response);
        let node = ("/dev/h".to_owned(), "rw".to_owned());
        assert_eq!(devices.nodes, [("/dev/h".to_owned(), node)].into());
    }

    #[test]
    fn an_answer_names_the_field_that_is_wrong() {
        type Spoil = fn(&mut ContainerAllocateResponse);
        assert_eq!(check(&response()), Ok(()));
        let cases: [(Spoil, &str); 6] = [
            (
                |it| drop(it.envs.insert("B".to_owned(), "x".repeat(LONGEST))),
                "container_responses[0]: takes 262",
            ),
            (
                |it| drop(it.envs.insert("A=B".to_owned(), String::new())),
                "envs: \"A=B\"",
            ),
            (
                |it| it.mounts[0].host_path = "h".to_owned(),
                "mounts[0].host_path: \"h\"",
            ),
            (
                |it| it.mounts[0].container_path = String::new(),
                "mounts[0].container_path: \"\"",
            ),
            (
                |it| it.devices[0].host_path = "dev".to_owned(),
                "devices[0].host_path: \"dev\"",
            ),
            (
                |it| it.devices[0].permissions = "rx".to_owned(),
                "devices[0].permissions: \"rx\"",
            ),
        ];
        for (spoil, says) in cases {
            let mut response = response();
            spoil(&mut response);
            let error = check(&response).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn the_first_answer_wins() {
        let mut all = ContainerDevices::default();
        all.add("x.y/a", &response());
        let first = all.clone();
        let mut other = response();
        other.envs = [
            ("A".to_owned(), "2".to_owned()),
            ("B".to_owned(), "3".to_owned()),
        ]
        .into();
        other.mounts[0].host_path = "/other".to_owned();
        other.devices[0].permissions = "r".to_owned();
        all.add("x.y/b", &other);
        assert_eq!(all.variables["A"], "1");
        assert_eq!(all.variables["B"], "3");
        let same = (&all.mounts, &all.nodes, &all.annotations, &all.cdi);
        assert_eq!(
            same,
            (&first.mounts, &first.nodes, &first.annotations, &first.cdi)
        );
    }
}
