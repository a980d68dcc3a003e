//! Which container has which CPUs, in the format of upstream's `cpu_manager_state`.

use std::{collections::BTreeMap, fmt::Write as _};

use kubelet_host::{
    cpu_set::CpuSet,
    state_file::{InvalidState, StateFile},
};
use serde::{Deserialize, Serialize};

/// The CPUs of each container, by the pod's UID and the container's name.
pub type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Exclusive CPUs, and those that all other containers share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// The CPUs of containers without exclusive ones.
    pub shared: CpuSet,
    /// The exclusive CPUs.
    pub exclusive: Assignments,
}

/// The file. Older formats and that of the feature gate `PodLevelResourceManagers` are refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CpuStateFile {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

impl CpuState {
    /// Reads the content of a state file.
    ///
    /// # Errors
    /// The file must not be used.
    pub fn parse(content: &[u8], policy: &str) -> Result<Self, InvalidState> {
        let file = CpuStateFile::parse(content, policy)?;
        let mut exclusive = Assignments::new();
        for (pod, containers) in file.entries {
            let of_pod = exclusive.entry(pod.clone()).or_default();
            for (container, text) in containers {
                let cpus = cpus(|| format!("container {container} of pod {pod}"), &text)?;
                of_pod.insert(container, cpus);
            }
        }
        Ok(Self {
            shared: cpus(|| "all containers".to_owned(), &file.default_cpu_set)?,
            exclusive,
        })
    }

    /// The content of the state file.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn to_file(&self, policy: &str) -> serde_json::Result<String> {
        let entries = self.exclusive.iter().map(|(pod, containers)| {
            let containers = containers.iter();
            let texts = containers.map(|(name, cpus)| (name.clone(), cpus.to_string()));
            (pod.clone(), texts.collect())
        });
        let file = CpuStateFile {
            policy_name: policy.to_owned(),
            default_cpu_set: self.shared.to_string(),
            entries: entries.collect(),
            checksum: 0,
        };
        file.content()
    }

    /// The exclusive CPUs of a container.
    pub fn of(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.exclusive.get(pod)?.get(container)
    }
}

fn cpus(owner: impl FnOnce() -> String, text: &str) -> Result<CpuSet, InvalidState> {
    text.parse()
        .map_err(|error| InvalidState::Format(format!("CPUs of {}: {error}", owner())))
}

impl StateFile for CpuStateFile {
    fn policy(&self) -> &str {
        &self.policy_name
    }

    fn checksum(&mut self) -> &mut u64 {
        &mut self.checksum
    }

    fn as_go_prints(&self) -> String {
        let mut text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[",
            self.policy_name, self.default_cpu_set
        );
        let mut separator = "";
        for (pod, containers) in &self.entries {
            let containers = containers.iter();
            let containers: Vec<String> = containers
                .map(|(name, cpus)| format!("{name}:{cpus}"))
                .collect();
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{pod}:map[{}]", containers.join(" "));
            separator = " ";
        }
        text.push_str("] Checksum:(checksum.Checksum)0}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that upstream's kubelet wrote.
    const FILES: [&str; 3] = [
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
        r#"{"policyName":"static","defaultCpuSet":"0-3,8","checksum":2391417808}"#,
        r#"{"policyName":"static","defaultCpuSet":"0-3,8","entries":{"a-uid":{"c":"7"},"b-uid":{"a":"6","z":"4-5"}},"checksum":482534014}"#,
    ];

    fn policy(file: &str) -> &str {
        file.split('"').nth(3).unwrap()
    }

    #[test]
    fn files_of_upstream_are_read_and_written_the_same() {
        for file in FILES {
            let state = CpuState::parse(file.as_bytes(), policy(file)).unwrap();
            assert_eq!(state.to_file(policy(file)).unwrap(), file);
        }
        let state = CpuState::parse(FILES[2].as_bytes(), "static").unwrap();
        assert_eq!(state.shared, "0-3,8".parse().unwrap());
        assert_eq!(state.of("b-uid", "z"), Some(&"4-5".parse().unwrap()));
        assert_eq!((state.of("b-uid", "c"), state.of("c", "c")), (None, None));
    }

    #[test]
    fn a_file_that_must_not_be_used_is_refused() {
        let changed = FILES[2].replace("4-5", "4-6");
        let without_checksum = changed.replace("482534014", "0").replace("4-6", "4-x");
        for (file, policy, says) in [
            (FILES[0], "static", "the policy \"none\""),
            (&changed, "static", "checksum is 482534014"),
            (
                &without_checksum,
                "static",
                "CPUs of container z of pod b-uid",
            ),
            ("{", "static", "invalid"),
            (
                r#"{"policyName":"static","defaultCpuSet":"0","podEntries":{},"checksum":0}"#,
                "static",
                "podEntries",
            ),
            // The format before 1.18.
            (
                r#"{"policyName":"static","defaultCpuSet":"0","entries":{"id":"1"},"checksum":0}"#,
                "static",
                "invalid type",
            ),
        ] {
            let error = CpuState::parse(file.as_bytes(), policy).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
