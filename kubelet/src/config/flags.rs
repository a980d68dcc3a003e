//! The flags of a run of the kubelet.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use kubelet_garbage_collector::ContainerGcOptions;
use serde_json::{Map, Value};

use crate::lock_file::LockFileOptions;

/// The kubelet's flags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--config-dir`.
    pub config_dir: Option<PathBuf>,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `--container-logs-dir`.
    pub container_logs_dir: PathBuf,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// `--node-ip`.
    pub node_ips: Vec<IpAddr>,
    /// `--image-credential-provider-config`.
    pub image_credential_provider_config: Option<PathBuf>,
    /// `--image-credential-provider-bin-dir`.
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// `--kubeconfig`; without it the kubelet is standalone.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--bootstrap-checkpoint-path`.
    pub bootstrap_checkpoint_path: Option<PathBuf>,
    /// `--bootstrap-checkpoint-key`.
    pub bootstrap_checkpoint_key: Option<PathBuf>,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// `--runtime-cgroups`.
    pub runtime_cgroups: Option<String>,
    /// `--minimum-container-ttl-duration`, `--maximum-dead-containers-per-container` and
    /// `--maximum-dead-containers`.
    pub container_gc: ContainerGcOptions,
    /// `--set-kernel-tunables`.
    pub set_kernel_tunables: bool,
    /// `--lock-file` and `--exit-on-lock-contention`.
    pub lock_file: Option<LockFileOptions>,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
    /// Flags that set `KubeletConfiguration` fields, in the shape of the file.
    pub configuration: Map<String, Value>,
    /// All flags with an effect, by name, as `/flagz` shows them.
    pub shown: BTreeMap<&'static str, ShownValue>,
    /// Flags that were given but have no effect yet, with their dashes.
    pub without_effect: Vec<String>,
}

/// Where the shown value of a flag comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownValue {
    /// The command line; null if it was not given.
    CommandLine(Value),
    /// The field of `KubeletConfiguration` at this path, from wherever it was set.
    Field(&'static str),
}
