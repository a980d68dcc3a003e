//! The file that tells which container has which devices, in the format of upstream's
//! `kubelet_internal_checkpoint`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use cri_proto::deviceplugin::v1beta1::ContainerAllocateResponse;
use k8s_openapi::ByteString;
use kubelet_host::state_file::{self, InvalidState};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::{
    assignments::{Assignment, Assignments},
    device::DevicesPerNode,
};

/// The name of the file.
pub(crate) const FILE: &str = "kubelet_internal_checkpoint";

/// What the file tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) assignments: Assignments,
    /// The resources of plugins. Upstream lists their healthy devices, which neither kubelet reads.
    pub(crate) registered: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct CheckpointFile {
    data: Data,
    checksum: u64,
}

/// Go writes an empty list as `null` if it was never made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<i64, Option<Vec<String>>>>,
    /// An encoded `ContainerAllocateResponse`.
    #[serde(rename = "AllocResp")]
    response: Option<ByteString>,
}

impl Checkpoint {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// The file must not be used.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, InvalidState> {
        let invalid = |text: String| InvalidState::Format(text);
        let file: CheckpointFile =
            serde_json::from_slice(content).map_err(|error| invalid(error.to_string()))?;
        let computed = state_file::checksum(&file.data.as_go_prints());
        if file.checksum != computed {
            return Err(InvalidState::Checksum {
                found: file.checksum,
                computed,
            });
        }
        let mut checkpoint = Self::default();
        for entry in file.data.pod_device_entries.into_iter().flatten() {
            let bytes = entry.response.unwrap_or_default().0;
            let response = ContainerAllocateResponse::decode(&*bytes).map_err(|error| {
                invalid(format!(
                    "AllocResp of container {} of pod {}: {error}",
                    entry.container, entry.pod
                ))
            })?;
            let devices = entry.devices.unwrap_or_default().into_iter();
            let devices = devices.map(|(node, ids)| (node, ids.unwrap_or_default()));
            let assignment = Assignment {
                devices: devices.collect::<DevicesPerNode>(),
                response: Some(response),
            };
            let (pod, container) = (&entry.pod, &entry.container);
            let assignments = &mut checkpoint.assignments;
            assignments.insert(pod, container, &entry.resource, assignment);
        }
        let registered = file.data.registered_devices.unwrap_or_default();
        checkpoint.registered = registered
            .into_iter()
            .map(|(resource, ids)| (resource, ids.into_iter().flatten().collect()))
            .collect();
        Ok(checkpoint)
    }

    /// The content of the file. Devices whose plugin has not answered yet are left out.
    ///
    /// # Errors
    /// It is no JSON object.
    pub(crate) fn to_file(&self) -> serde_json::Result<String> {
        let entries = self
            .assignments
            .all()
            .filter_map(|(pod, container, resource, of)| {
                let devices = of.devices.iter();
                Some(Entry {
                    pod: pod.to_owned(),
                    container: container.to_owned(),
                    resource: resource.to_owned(),
                    devices: Some(
                        devices
                            .map(|(node, ids)| (*node, Some(ids.clone())))
                            .collect(),
                    ),
                    response: Some(ByteString(of.response.as_ref()?.encode_to_vec())),
                })
            });
        let registered = self.registered.iter().map(|(resource, ids)| {
            let ids = ids.iter().cloned().collect();
            (resource.clone(), Some(ids))
        });
        let data = Data {
            pod_device_entries: Some(entries.collect()),
            registered_devices: Some(registered.collect()),
        };
        let checksum = state_file::checksum(&data.as_go_prints());
        serde_json::to_string(&CheckpointFile { data, checksum })
    }
}

impl Data {
    /// As Go prints it (`%#v` of go-spew): upstream hashes that.
    fn as_go_prints(&self) -> String {
        let entries = list(self.pod_device_entries.as_deref(), Entry::as_go_prints);
        let registered = match &self.registered_devices {
            None => "<nil>".to_owned(),
            Some(resources) => {
                let texts = resources.iter().map(|(resource, ids)| {
                    format!("{resource}:{}", list(ids.as_deref(), String::clone))
                });
                format!("map[{}]", joined(texts))
            }
        };
        format!(
            "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
             RegisteredDevices:(map[string][]string){registered}}}"
        )
    }
}

impl Entry {
    fn as_go_prints(&self) -> String {
        let Self {
            pod,
            container,
            resource,
            ..
        } = self;
        let mut text = format!(
            "{{PodUID:(string){pod} ContainerName:(string){container} \
             ResourceName:(string){resource} DeviceIDs:(checkpoint.DevicesPerNUMA)"
        );
        match &self.devices {
            None => text.push_str("<nil>"),
            Some(devices) => {
                let nodes = devices.iter();
                let nodes = nodes
                    .map(|(node, ids)| format!("{node}:{}", list(ids.as_deref(), String::clone)));
                // Writing to a string cannot fail.
                let _ = write!(text, "map[{}]", joined(nodes));
            }
        }
        let bytes = self.response.as_ref().map(|bytes| &*bytes.0);
        let _ = write!(text, " AllocResp:([]uint8){}}}", list(bytes, u8::to_string));
        text
    }
}

fn list<T>(items: Option<&[T]>, text: impl Fn(&T) -> String) -> String {
    items.map_or_else(
        || "<nil>".to_owned(),
        |items| format!("[{}]", joined(items.iter().map(text))),
    )
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that upstream's code wrote.
    const FILES: [&str; 4] = [
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#,
        r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a.b/c":[]}},"Checksum":1269956437}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"r","ContainerName":"d","ResourceName":"x.y/gpu","DeviceIDs":null,"AllocResp":null},{"PodUID":"r","ContainerName":"e","ResourceName":"x.y/gpu","DeviceIDs":{"-1":null},"AllocResp":""}],"RegisteredDevices":{"x.y/gpu":null}},"Checksum":563743737}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"x.y/gpu","DeviceIDs":{"-1":["d"],"0":["b","a"],"10":["t"],"2":["z"]},"AllocResp":"CgcKAUESAmhp"},{"PodUID":"q","ContainerName":"c","ResourceName":"x.y/gpu","DeviceIDs":{},"AllocResp":""},{"PodUID":"q","ContainerName":"d","ResourceName":"x.y/gpu","DeviceIDs":{"-1":["ü%\""]},"AllocResp":""}],"RegisteredDevices":{"x.y/ab":[],"x.y/gpu":["a","b"]}},"Checksum":3288632053}"#,
    ];

    #[test]
    fn files_of_upstream_are_read_and_written_the_same() {
        let read = FILES.map(|file| Checkpoint::parse(file.as_bytes()).unwrap());
        for (checkpoint, file) in read.iter().zip(FILES) {
            let written = checkpoint.to_file().unwrap();
            assert_eq!(
                Checkpoint::parse(written.as_bytes()).as_ref(),
                Ok(checkpoint)
            );
            // Null is written as an empty list, and NUMA nodes come in another order.
            let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(
                json(&written) == json(file),
                !file.contains("null"),
                "{written}"
            );
        }
        let full = &read[3];
        let assignment = full.assignments.get("p", "c", "x.y/gpu").unwrap();
        assert_eq!(assignment.ids(), BTreeSet::from(["a", "b", "d", "t", "z"]));
        let response = assignment.response.as_ref().unwrap();
        assert_eq!(response.envs["A"], "hi");
        assert_eq!(full.registered["x.y/gpu"].len(), 2);
    }

    #[test]
    fn devices_without_an_answer_are_not_written() {
        let mut checkpoint = Checkpoint::default();
        let assignment = Assignment {
            devices: [(0, vec!["a".to_owned()])].into(),
            response: None,
        };
        checkpoint
            .assignments
            .insert("p", "c", "x.y/gpu", assignment);
        let written = checkpoint.to_file().unwrap();
        assert_eq!(
            Checkpoint::parse(written.as_bytes()),
            Ok(Checkpoint::default())
        );
    }

    #[test]
    fn a_file_that_must_not_be_used_is_refused() {
        let changed = FILES[3].replace("[\"t\"]", "[\"u\"]");
        let not_a_message = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"x.y/gpu","DeviceIDs":null,"AllocResp":"/w=="}],"RegisteredDevices":null},"Checksum":SUM}"#;
        let sum = Checkpoint::parse(not_a_message.replace("SUM", "0").as_bytes()).unwrap_err();
        let InvalidState::Checksum { computed, .. } = sum else {
            panic!("{sum}");
        };
        let not_a_message = not_a_message.replace("SUM", &computed.to_string());
        for (file, says) in [
            (&*changed, "checksum is 3288632053"),
            ("{", "invalid"),
            (&not_a_message, "AllocResp of container c of pod p"),
            (r#"{"Data":{},"Checksum":0,"V3":1}"#, "V3"),
        ] {
            let error = Checkpoint::parse(file.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
