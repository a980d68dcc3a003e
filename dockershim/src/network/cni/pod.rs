//! A sandbox, as plugins are told of it.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use serde_json::{Map, Value};

use super::chain::Attachment;
use crate::model::Sandbox;

/// Says in `CNI_ARGS` which sandbox an attachment is of.
pub(super) const SANDBOX_ARG: &str = "K8S_POD_INFRA_CONTAINER_ID";
/// Where the namespaces of processes are; other runtimes keep theirs elsewhere.
pub(super) const PROCESSES: &str = "/proc/";

/// A sandbox, as plugins are told of it.
#[derive(Debug, Clone)]
pub struct Pod<'a> {
    pub(super) id: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    /// The path of its network namespace; empty when it does not run.
    pub(super) netns: String,
}

impl<'a> Pod<'a> {
    /// The pod of a sandbox.
    pub fn of(sandbox: &'a Sandbox) -> Self {
        Self {
            id: sandbox.id(),
            namespace: sandbox.namespace(),
            name: sandbox.pod(),
            uid: sandbox.uid(),
            netns: netns(sandbox.pid),
        }
    }

    /// A pod in a namespace that is no process's.
    #[cfg(test)]
    pub(super) fn in_netns(id: &'a str, netns: &str) -> Self {
        Self {
            id,
            namespace: "default",
            name: "web",
            uid: "uid",
            netns: netns.to_owned(),
        }
    }

    /// The pod's interface `ifname`.
    pub(super) fn attachment(
        &self,
        ifname: &str,
        capability_args: Map<String, Value>,
    ) -> Attachment {
        let args = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", self.namespace),
            ("K8S_POD_NAME", self.name),
            (SANDBOX_ARG, self.id),
            ("K8S_POD_UID", self.uid),
        ];
        Attachment {
            container_id: self.id.to_owned(),
            netns: self.netns.clone(),
            ifname: ifname.to_owned(),
            args: args.map(|(key, value)| (key.into(), value.into())).into(),
            capability_args,
        }
    }
}

/// The path of a process's network namespace; empty when there is no such process, or its
/// namespace is the node's own: a sandbox that has ended leaves its number to others.
fn netns(pid: i64) -> String {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let path = format!("{PROCESSES}{pid}/ns/net");
    let theirs = identity(Path::new(&path));
    match (theirs, identity(Path::new("/proc/self/ns/net"))) {
        (Ok(theirs), Ok(own)) if theirs != own && pid != 0 => path,
        _ => String::new(),
    }
}
