//! The validated flags. The error for a bad value names the flag and the allowed values.

mod docker_endpoint;
mod log;

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_streaming::rustls::{
    self,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use go_duration::GoDuration;

pub(crate) use log::parse_driver as parse_log_driver;
pub use log::{EngineLog, LogDriver, LogFormat};
use registry_credentials::docker_config_files::DockerConfigFiles;
use tracing::level_filters::LevelFilter;

use crate::{
    cli::Cli,
    engine::Endpoint,
    images::Reference,
    network::{
        cni::{Directories, pod_cidr},
        hairpin::HairpinMode,
    },
    security::Clamp,
};

/// The shim's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The CRI socket.
    pub listen: Listen,
    /// The Docker engine.
    pub docker_endpoint: Endpoint,
    /// The provider of the pod network.
    pub network_plugin: NetworkPlugin,
    /// Hairpin mode for pods on the engine's own bridge.
    pub hairpin_mode: HairpinMode,
    /// The pod address ranges, until the kubelet sets others.
    pub pod_cidrs: Vec<String>,
    /// The sandbox image, as given in the flag.
    pub pod_infra_container_image: String,
    /// The sandbox image, normalised.
    pub pause_reference: Reference,
    /// Where credentials for the sandbox image's registry may be.
    pub docker_config: DockerConfigFiles,
    /// A pull without progress for this long is cancelled.
    pub image_pull_progress_deadline: Duration,
    /// When a negative `oom_score_adj` is raised.
    pub clamp_oom_score_adj: Clamp,
    /// The log format of new containers.
    pub log_format: LogFormat,
    /// The engine's log destination of new containers.
    pub log_driver: LogDriver,
    /// How much of a log the engine's json-file driver keeps for logs in CRI's format.
    pub engine_log: EngineLog,
    /// The directory for state that the engine cannot store.
    pub root_directory: PathBuf,
    /// The streaming server.
    pub streaming: cri_streaming::Config,
    /// The address of the metrics and health endpoints; without it, nothing is measured.
    pub metrics_bind_addr: Option<SocketAddr>,
    /// The log level.
    pub log_level: LevelFilter,
}

/// The CRI socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket that the shim creates.
    Unix(PathBuf),
    /// A socket passed by systemd.
    Activated,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Activated => f.write_str("fd://"),
        }
    }
}

/// The provider of the pod network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkPlugin {
    /// The CNI plugins in these directories.
    Docker,
    /// The plugins in these directories.
    Cni(Directories),
}

impl fmt::Display for NetworkPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Docker => f.write_str("docker"),
            Self::Cni(_) => f.write_str("cni"),
        }
    }
}

/// A flag with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {reason}")]
pub struct ConfigError {
    flag: &'static str,
    reason: String,
}

impl TryFrom<&Cli> for Config {
    type Error = ConfigError;

    fn try_from(cli: &Cli) -> Result<Self, ConfigError> {
        fn bad<E: fmt::Display>(flag: &'static str) -> impl Fn(E) -> ConfigError {
            move |error| ConfigError {
                flag,
                reason: error.to_string(),
            }
        }
        parse_duration(&cli.runtime_request_timeout).map_err(bad("runtime-request-timeout"))?;
        let image = &cli.pod_infra_container_image;
        let root_directory = parse_root(&cli.root_directory).map_err(bad("root-directory"))?;
        // systemd sets no HOME for services of root.
        let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
        Ok(Self {
            listen: parse_listen(&cli.container_runtime_endpoint)
                .map_err(bad("container-runtime-endpoint"))?,
            docker_endpoint: read_docker_endpoint(cli)?,
            network_plugin: read_network(cli)?,
            hairpin_mode: cli.hairpin_mode.parse().map_err(bad("hairpin-mode"))?,
            pod_cidrs: pod_cidr::parse(&cli.pod_cidr).map_err(bad("pod-cidr"))?,
            pause_reference: image.parse().map_err(bad("pod-infra-container-image"))?,
            pod_infra_container_image: image.clone(),
            docker_config: DockerConfigFiles::new(&root_directory, &home),
            image_pull_progress_deadline: parse_progress(&cli.image_pull_progress_deadline)
                .map_err(bad("image-pull-progress-deadline"))?,
            clamp_oom_score_adj: cli
                .clamp_oom_score_adj
                .parse()
                .map_err(bad("clamp-oom-score-adj"))?,
            log_format: log::parse_format(&cli.log_format).map_err(bad("log-format"))?,
            log_driver: parse_log_driver(&cli.log_driver).map_err(bad("log-driver"))?,
            engine_log: EngineLog {
                max_size: log::parse_size(&cli.engine_log_max_size)
                    .map_err(bad("engine-log-max-size"))?,
                max_file: log::parse_max_file(cli.engine_log_max_file)
                    .map_err(bad("engine-log-max-file"))?,
            },
            root_directory,
            streaming: cri_streaming::Config {
                tls: read_tls(cli)?,
                ..cri_streaming::Config::new(
                    parse_bind(&cli.streaming_bind_addr).map_err(bad("streaming-bind-addr"))?,
                )
            },
            metrics_bind_addr: match cli.metrics_bind_addr.as_str() {
                "" => None,
                address => Some(parse_bind(address).map_err(bad("metrics-bind-addr"))?),
            },
            log_level: parse_level(&cli.log_level).map_err(bad("log-level"))?,
        })
    }
}

/// The engine's endpoint, with the certificates from the flags or the environment.
pub(crate) fn read_docker_endpoint(cli: &Cli) -> Result<Endpoint, ConfigError> {
    docker_endpoint::read(&cli.docker_endpoint, &cli.docker_cert_path, |name| {
        std::env::var_os(name)
    })
}

pub(crate) fn parse_listen(endpoint: &str) -> Result<Listen, String> {
    let allowed = "allowed: unix://<absolute path>, fd://";
    match endpoint.split_once("://") {
        Some(("unix", path)) if path.starts_with('/') => Ok(Listen::Unix(path.into())),
        Some(("fd", "")) => Ok(Listen::Activated),
        Some(("fd", _)) => Err(format!(
            "{endpoint:?}: systemd passes a single socket, which takes no name; {allowed}"
        )),
        Some(("tcp" | "npipe", _)) => Err(format!(
            "{endpoint:?}: CRI is served only on this node; {allowed}"
        )),
        None if endpoint.starts_with('/') => Ok(Listen::Unix(endpoint.into())),
        _ => Err(format!("{endpoint:?}; {allowed}")),
    }
}

/// Parses an address like Go's `net.Listen`: without a host, it means all addresses.
pub(crate) fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    let allowed = "allowed: <host>:<port>, [<IPv6 address>]:<port>, :<port>";
    let address = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    let mut found = address
        .to_socket_addrs()
        .map_err(|error| format!("{text:?}: {error}; {allowed}"))?;
    found.next().ok_or_else(|| format!("{text:?}; {allowed}"))
}

fn read_tls(cli: &Cli) -> Result<Option<Arc<rustls::ServerConfig>>, ConfigError> {
    const CERTIFICATE: &str = "streaming-tls-cert-file";
    const KEY: &str = "streaming-tls-private-key-file";
    let bad = |flag: &'static str, reason: String| ConfigError { flag, reason };
    let (certificate, key) = match (
        &cli.streaming_tls_cert_file,
        &cli.streaming_tls_private_key_file,
    ) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (None, Some(_)) => return Err(bad(CERTIFICATE, format!("required with --{KEY}"))),
        (Some(_), None) => return Err(bad(KEY, format!("required with --{CERTIFICATE}"))),
    };
    let unread = |flag, path: &PathBuf, error: rustls::pki_types::pem::Error| {
        bad(flag, format!("{}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unread(CERTIFICATE, certificate, error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(KEY, key, error))?;
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| bad(CERTIFICATE, format!("{}: {error}", certificate.display())))?;
    Ok(Some(Arc::new(config)))
}

fn read_network(cli: &Cli) -> Result<NetworkPlugin, ConfigError> {
    let bad = |flag, reason| Err(ConfigError { flag, reason });
    match &*cli.network_plugin {
        // cri-dockerd's no-op plugin (`""`) leaves pods on the engine's own bridge.
        "docker" | "" => return Ok(NetworkPlugin::Docker),
        "cni" => {}
        other => {
            let reason = format!("{other:?}; allowed: cni, docker");
            return bad("network-plugin", reason);
        }
    }
    let bin = cli.cni_bin_dir.split(',').filter(|path| !path.is_empty());
    let directories = Directories {
        bin: bin.map(PathBuf::from).collect(),
        conf: PathBuf::from(&cli.cni_conf_dir),
        cache: PathBuf::from(&cli.cni_cache_dir),
    };
    let allowed = |what: &str, given: &str| format!("{given:?}; allowed: {what}");
    if directories.bin.is_empty() || directories.bin.iter().any(|path| path.is_relative()) {
        let reason = allowed("absolute paths, comma-separated", &cli.cni_bin_dir);
        return bad("cni-bin-dir", reason);
    }
    if directories.conf.is_relative() {
        return bad(
            "cni-conf-dir",
            allowed("an absolute path", &cli.cni_conf_dir),
        );
    }
    if directories.cache.is_relative() {
        return bad(
            "cni-cache-dir",
            allowed("an absolute path", &cli.cni_cache_dir),
        );
    }
    Ok(NetworkPlugin::Cni(directories))
}

fn parse_root(path: &Path) -> Result<PathBuf, String> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(format!("{path:?}; allowed: an absolute path"))
}

fn parse_level(level: &str) -> Result<LevelFilter, String> {
    match level.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok(LevelFilter::ERROR),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!(
            "{level:?}; allowed: panic, fatal, error, warn, info, debug, trace"
        )),
    }
}

fn parse_progress(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err(format!("{text:?}; allowed: more than 0")),
        deadline => Ok(deadline),
    }
}

/// Parses a duration in Go's notation: `1m30s`, `500ms`, `1.5h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    const UNITS: &str = "allowed units: h, m, s, ms, us, ns";
    let duration: GoDuration = text
        .parse()
        .map_err(|_| format!("{text:?} is not a duration like 1m30s; {UNITS}"))?;
    duration
        .to_std()
        .ok_or_else(|| format!("{text:?} is negative, not a duration like 1m30s; {UNITS}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};
    use proptest::prelude::*;

    use super::*;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let cli = Cli::parse_from(std::iter::once("dockershim").chain(flags.iter().copied()));
        Config::try_from(&cli)
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_a_cri_dockerd_unit_are_taken() {
        let config = config(&[
            "--container-runtime-endpoint=unix:///run/x.sock",
            "--cri-dockerd-root-directory=/var/lib/x",
            "--pod-infra-container-image=registry.k8s.io/pause:3.10",
            "--ipv6-dual-stack",
            "--runtime-cgroups=/system.slice/x",
            "--hairpin-mode=hairpin-veth",
            "--network-plugin-mtu=1400",
            "--log-level=warning",
        ]);
        let config = config.unwrap();
        assert_eq!(config.listen, Listen::Unix("/run/x.sock".into()));
        assert_eq!(config.metrics_bind_addr, None);
        assert_eq!(
            config.pause_reference.to_string(),
            "registry.k8s.io/pause:3.10"
        );
        assert_eq!(config.image_pull_progress_deadline, Duration::from_secs(60));
        let expected = NetworkPlugin::Cni(Directories {
            bin: vec!["/opt/cni/bin".into()],
            conf: "/etc/cni/net.d".into(),
            cache: "/var/lib/cni/cache".into(),
        });
        assert_eq!(config.network_plugin, expected);
    }

    #[test]
    fn pods_on_the_engines_bridge_are_asked_for_as_with_cri_dockerd() {
        for flag in ["--network-plugin=docker", "--network-plugin="] {
            assert_eq!(
                config(&[flag]).unwrap().network_plugin,
                NetworkPlugin::Docker
            );
        }
    }

    #[test]
    fn a_bad_value_names_flag_and_what_is_allowed() {
        for (flag, value) in [
            ("container-runtime-endpoint", "fd://7"),
            ("container-runtime-endpoint", "run/x.sock"),
            ("docker-endpoint", "docker.sock"),
            ("network-plugin", "kubenet"),
            ("cni-bin-dir", ","),
            ("cni-bin-dir", "/opt/cni/bin,bin"),
            ("cni-conf-dir", "net.d"),
            ("cni-cache-dir", ""),
            ("pod-cidr", "10.1.0.0"),
            ("image-pull-progress-deadline", "soon"),
            ("image-pull-progress-deadline", "0s"),
            ("image-pull-progress-deadline", "-1m"),
            ("runtime-request-timeout", "-1s"),
            ("clamp-oom-score-adj", "maybe"),
            ("log-level", "loud"),
            ("hairpin-mode", "yes"),
            ("log-format", "text"),
            ("log-driver", "journald"),
            ("engine-log-max-size", "big"),
            ("engine-log-max-size", "1M"),
            ("engine-log-max-size", "999k"),
            ("engine-log-max-size", "99999999999999999999g"),
            ("engine-log-max-file", "1"),
            ("engine-log-max-file", "1001"),
            ("root-directory", "var/lib"),
            ("metrics-bind-addr", "nowhere"),
        ] {
            let error = config(&[&format!("--{flag}={value}")])
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(&format!("--{flag}: ")), "{error}");
            assert!(error.contains("allowed"), "{error}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_come_together() {
        let (certificate, key) = ("streaming-tls-cert-file", "streaming-tls-private-key-file");
        for (given, wanted) in [(certificate, key), (key, certificate)] {
            let error = config(&[&format!("--{given}=/nonexistent")]).unwrap_err();
            let says = format!("--{wanted}: required with --{given}");
            assert_eq!(error.to_string(), says);
        }
    }

    #[test]
    fn the_engine_keeps_a_minute_of_a_log_by_default() {
        let log = config(&[]).unwrap().engine_log;
        assert_eq!((log.max_size.as_str(), log.max_file), ("8m", 200));
        let size: u64 = log.max_size.strip_suffix('m').unwrap().parse().unwrap();
        // The newest file may be almost empty.
        let kept = size * 1_000_000 * u64::from(log.max_file - 1);
        let line = 50;
        let entry = r#"{"log":"\n","stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}"#;
        let entry = entry.len() as u64 + line;
        let written = 60 * 10 * 1024 * 1024;
        assert!(kept >= written / line * entry, "{kept}");
    }

    #[test]
    fn a_subcommand_takes_the_same_flags_before_and_after_it() {
        for line in [
            [
                "--docker-endpoint=unix:///x",
                "doctor",
                "--network-plugin=cni",
            ],
            [
                "doctor",
                "--docker-endpoint=unix:///x",
                "--network-plugin=cni",
            ],
        ] {
            let cli = Cli::parse_from(std::iter::once("dockershim").chain(line));
            assert_eq!(cli.command, Some(crate::cli::Command::Doctor));
            assert_eq!(cli.docker_endpoint, "unix:///x");
            assert_eq!(cli.network_plugin, "cni");
            assert_eq!(cli.root_directory, Path::new("/var/lib/cri-dockerd"));
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in [
            ("1m0s", Duration::from_millis(60_000)),
            ("1h2m3s", Duration::from_millis(3_723_000)),
            ("1.5h", Duration::from_millis(5_400_000)),
            ("250ms", Duration::from_millis(250)),
            ("0", Duration::ZERO),
            ("0.1s", Duration::from_millis(100)),
            ("1us", Duration::from_micros(1)),
            ("1.5µs", Duration::from_nanos(1_500)),
            ("7ns", Duration::from_nanos(7)),
            ("+1s", Duration::from_secs(1)),
            ("-0s", Duration::ZERO),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1d", "1m s", "1..5s", "-", "9999999h"] {
            let reason = parse_duration(bad).unwrap_err();
            assert!(reason.starts_with(&format!("{bad:?} is ")), "{reason}");
            assert!(reason.contains("units: h, m, s, ms, us, ns"), "{reason}");
        }
        assert!(parse_duration("-1ns").unwrap_err().contains("is negative"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_refused(text in ".{0,20}") {
            let _ = parse_duration(&text);
        }
    }
}
