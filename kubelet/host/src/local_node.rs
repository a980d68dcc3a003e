//! This node as the user of the kubelet describes it.

use std::{net::IpAddr, path::PathBuf};

use crate::selinux::SeLinux;

/// The node's name, addresses and directories, which most parts of the kubelet share.
#[derive(Clone, Debug)]
pub struct LocalNode {
    /// Its name: `--hostname-override` or the host's name in lower case.
    pub name: String,
    /// Its addresses as they were given (`--node-ip`), at most one of each family, the
    /// primary first; the unspecified address of a family asks for that family's own.
    pub ips: Vec<IpAddr>,
    /// The kubelet's own files (`--root-dir`).
    pub root_dir: PathBuf,
    /// Directory of the pods' log directories (`podLogsDir`).
    pub pod_logs_dir: PathBuf,
    /// Directory of links to the logs of containers (`--container-logs-dir`); no links are
    /// made when unset.
    pub container_logs_dir: Option<PathBuf>,
    /// SELinux, where the node has it enabled.
    pub selinux: Option<SeLinux>,
}

impl Default for LocalNode {
    /// Upstream's directories on a node named `localhost`, without addresses, SELinux, or
    /// links to logs.
    fn default() -> Self {
        Self {
            name: "localhost".to_owned(),
            ips: Vec::new(),
            root_dir: PathBuf::from("/var/lib/kubelet"),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            container_logs_dir: None,
            selinux: None,
        }
    }
}
