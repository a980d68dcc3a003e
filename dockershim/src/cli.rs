//! The command-line flags. Their names are cri-dockerd's, and so are the defaults that make sense
//! here.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the text of --help, which is no HTML"
)]

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::images;

/// Serves CRI v1 on a unix socket, backed by a Docker engine.
#[derive(Debug, Parser)]
#[command(
    name = "dockershim",
    version,
    after_help = "Replaces cri-dockerd: the flags have the same names.",
    mut_args(|flag| flag.global(true))
)]
pub struct Cli {
    /// Command to run instead of serving CRI
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Socket to serve CRI on: unix://<absolute path>, or fd:// for the socket that systemd passes
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "unix:///run/cri-dockerd.sock"
    )]
    pub container_runtime_endpoint: String,

    /// Address of the Docker engine: unix://<absolute path> or tcp://<host>:<port>
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "unix:///var/run/docker.sock"
    )]
    pub docker_endpoint: String,

    /// Directory with ca.pem, cert.pem and key.pem, for a tcp:// engine over TLS: the shim presents
    /// cert.pem and verifies the engine with ca.pem. If empty, DOCKER_CERT_PATH names the directory
    #[arg(long, value_name = "PATH", default_value = "")]
    pub docker_cert_path: String,

    /// Network of pods: "cni", the plugins in the node's CNI configuration; "docker" or "", the
    /// engine's own bridge
    #[arg(long, value_name = "NAME", default_value = "cni")]
    pub network_plugin: String,

    /// Image of every pod sandbox; the default is built in and needs no registry. Credentials for
    /// another one are read from config.json in --root-directory, or from ~/.docker/config.json
    #[arg(long, value_name = "IMAGE", default_value = images::BUILT_IN_PAUSE)]
    pub pod_infra_container_image: String,

    /// Time without progress after which an image pull is aborted
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub image_pull_progress_deadline: String,

    /// When to raise a negative oom_score_adj to the lowest value that the engine can set: "auto",
    /// if the engine lacks CAP_SYS_RESOURCE; "always"; "never"
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub clamp_oom_score_adj: String,

    /// Minimum severity to log: panic, fatal, error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// Format of container logs: "cri", written by the shim; "json-file", a symlink to the engine's
    /// own log
    #[arg(long, value_name = "FORMAT", default_value = "cri")]
    pub log_format: String,

    /// Log driver for containers of pods: "json-file", files that the shim reads; "engine", the
    /// engine's default driver, which the shim reads through the engine's API if the driver
    /// supports reading
    #[arg(long, value_name = "DRIVER", default_value = "json-file")]
    pub log_driver: String,

    /// Size at which the engine rotates a container's json-file log, in the engine's units (k, m
    /// and g are powers of 1000). The shim converts these files to the CRI log; for
    /// --log-driver=json-file
    #[arg(long, value_name = "SIZE", default_value = "8m")]
    pub engine_log_max_size: String,

    /// Number of such files that the engine keeps before it removes the oldest: output beyond that
    /// while the shim is down is lost. Files that the shim has converted are removed immediately
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    pub engine_log_max_file: u32,

    /// Directory for state that the engine cannot store
    #[arg(
        long,
        visible_alias = "cri-dockerd-root-directory",
        value_name = "PATH",
        default_value = "/var/lib/cri-dockerd"
    )]
    pub root_directory: PathBuf,

    /// Address of the streaming server for exec, attach and port-forward: <host>:<port>; port 0
    /// selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "localhost:0")]
    pub streaming_bind_addr: String,

    /// Certificate chain for serving streaming over TLS, in PEM
    #[arg(long, value_name = "PATH")]
    pub streaming_tls_cert_file: Option<PathBuf>,

    /// Private key of the first certificate in --streaming-tls-cert-file, in PEM
    #[arg(long, value_name = "PATH")]
    pub streaming_tls_private_key_file: Option<PathBuf>,

    /// Address of /metrics, /healthz and /readyz: <host>:<port>; port 0 selects a free port. If
    /// empty, metrics are disabled
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    pub metrics_bind_addr: String,

    /// Directories with CNI plugins, comma-separated; for --network-plugin=cni
    #[arg(long, value_name = "PATHS", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: String,

    /// Directory with CNI configurations; the first valid one is used; for --network-plugin=cni
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: String,

    /// Directory with records of the networks that sandboxes are attached to; for
    /// --network-plugin=cni
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/cache")]
    pub cni_cache_dir: String,

    /// Range of pod IP addresses, or one per IP family, comma-separated, until the kubelet sets
    /// another; for --network-plugin=cni
    #[arg(long, value_name = "CIDR", default_value = "")]
    pub pod_cidr: String,

    /// Accepted for compatibility; has no effect
    #[arg(long, value_name = "CGROUP", default_value = "")]
    pub runtime_cgroups: String,

    /// Accepted for compatibility; has no effect
    #[arg(long, value_name = "DURATION", default_value = "2m0s")]
    pub runtime_request_timeout: String,

    /// Accepted for compatibility; has no effect
    #[arg(long, value_name = "MTU", default_value_t = 0)]
    pub network_plugin_mtu: i32,

    /// How a pod reaches itself through a Service address: "hairpin-veth", hairpin mode on the
    /// pod's bridge port; "promiscuous-bridge", promiscuous mode on the bridge; "none", the
    /// engine's own setting. For --network-plugin=docker, in the engine's network namespace
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub hairpin_mode: String,

    /// Accepted for compatibility; has no effect
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true")]
    pub ipv6_dual_stack: bool,

    /// Prints build information
    #[arg(long)]
    pub buildinfo: bool,
}

/// Subcommands; without one, the shim serves CRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Checks whether this node has what the shim needs, and suggests fixes for what is missing;
    /// takes the same flags
    Doctor,
}

/// The build information that `--buildinfo` prints.
pub fn build_info() -> String {
    format!(
        "dockershim {} ({} {}, CRI v1, Docker Engine API {}.{} or newer)",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        crate::engine::OLDEST_API.0,
        crate::engine::OLDEST_API.1,
    )
}
