//! The command line: upstream's kubelet flags, `kubelet status`, `kubelet logs` and `kubelet gc`.

mod checkpoint;
mod container_gc;
mod gc;
mod logs;
mod node_ips;
mod node_labels;
mod status;
mod table;
mod value;

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, builder::StyledStr, error::ErrorKind};
use serde_json::{Map, Value};
use table::{Flag, GROUPS, Target};
use value::Kind;

use crate::{
    config::{
        flags::{Flags, ShownValue},
        support,
    },
    gc_command::GcOptions,
    lock_file::LockFileOptions,
    logs_command::LogsOptions,
    status_command::StatusOptions,
};

/// A parsed command line.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run the node agent.
    Run(Box<Flags>),
    /// Print the pods of the running kubelet.
    Status(StatusOptions),
    /// Print the log of a container of the running kubelet.
    Logs(LogsOptions),
    /// Tell what the running kubelet would remove.
    Gc(GcOptions),
    /// Print the version; with all its parts if `raw`.
    Version {
        /// `--version=raw`.
        raw: bool,
    },
}

/// Parses a command line, which starts with the program's name.
///
/// # Errors
/// The flag, its value and what is allowed; also the text of `--help`.
pub fn parse<I, T>(args: I) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let args = args.into_iter().map(|arg| with_dashes(arg.into()));
    let mut command = command();
    let matches = command.try_get_matches_from_mut(args)?;
    if let Some(version) = matches.get_one::<String>("version")
        && version != "false"
    {
        return Ok(Command::Version {
            raw: version == "raw",
        });
    }
    match matches.subcommand() {
        Some(("status", matches)) => Ok(Command::Status(status::options(matches))),
        Some(("logs", matches)) => Ok(Command::Logs(logs::options(matches))),
        Some(("gc", matches)) => Ok(Command::Gc(gc::options(matches))),
        _ => flags(&matches)
            .map(|flags| Command::Run(Box::new(flags)))
            .map_err(|fault| command.error(ErrorKind::ValueValidation, fault)),
    }
}

/// Accepts `_` for `-` in flag names, as upstream.
fn with_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = match text.find('=') {
                Some(at) => text.split_at(at),
                None => (text, ""),
            };
            OsString::from(name.replace('_', "-") + value)
        }
        _ => arg,
    }
}

fn command() -> clap::Command {
    let mut command = clap::Command::new("kubelet")
        .about("The Kubernetes node agent: runs pods on a CRI v1 container runtime")
        .after_help(
            "`kubelet status` shows the pods of the running kubelet, `kubelet logs` prints their \
             logs, and `kubelet gc` tells what it would remove.",
        )
        .args_conflicts_with_subcommands(true)
        .args_override_self(true)
        .subcommand(status::command())
        .subcommand(logs::command())
        .subcommand(gc::command())
        .arg(
            Arg::new("version")
                .long("version")
                .value_name("true|false|raw")
                .hide_possible_values(true)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(["true", "false", "raw"])
                .help("Print the version and exit; =raw prints all version fields"),
        );
    for (heading, flags) in GROUPS {
        for flag in *flags {
            command = command.arg(argument(flag).help_heading(*heading));
        }
    }
    command
}

fn argument(flag: &'static Flag) -> Arg {
    let kind = flag.kind;
    let mut arg = Arg::new(flag.name)
        .long(flag.name)
        .value_name(kind.placeholder())
        .value_parser(move |text: &str| kind.parse(text))
        .allow_negative_numbers(true)
        .help(help(flag));
    if flag.name == "v" {
        arg = arg.short('v');
    }
    if kind.accumulates() {
        arg = arg.action(ArgAction::Append);
    }
    if kind == Kind::Bool {
        arg = arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true");
    }
    arg
}

fn help(flag: &Flag) -> StyledStr {
    let note = match flag.target {
        Target::Unused => " (no effect)",
        Target::Field(field) if !support::has_effect_inside(field) => " (no effect yet)",
        Target::Field(_) | Target::Node => "",
    };
    format!("{}{note}", flag.help).into()
}

fn flags(matches: &ArgMatches) -> Result<Flags, String> {
    let text = |name: &str| {
        matches
            .get_one::<Value>(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let mut flags = Flags {
        config: text("config").map(PathBuf::from),
        config_dir: text("config-dir").map(PathBuf::from),
        root_dir: PathBuf::from(text("root-dir").unwrap_or_else(|| "/var/lib/kubelet".to_owned())),
        container_logs_dir: PathBuf::from(
            text("container-logs-dir").unwrap_or_else(|| "/var/log/containers".to_owned()),
        ),
        cert_dir: text("cert-dir").map(PathBuf::from),
        hostname_override: text("hostname-override"),
        image_credential_provider_config: text("image-credential-provider-config")
            .map(PathBuf::from),
        image_credential_provider_bin_dir: text("image-credential-provider-bin-dir")
            .map(PathBuf::from),
        node_ips: node_ips::node_ips(text("node-ip").as_deref().unwrap_or_default())?,
        kubeconfig: text("kubeconfig").map(PathBuf::from),
        bootstrap_kubeconfig: text("bootstrap-kubeconfig").map(PathBuf::from),
        bootstrap_checkpoint_path: text("bootstrap-checkpoint-path").map(PathBuf::from),
        bootstrap_checkpoint_key: text("bootstrap-checkpoint-key").map(PathBuf::from),
        runtime_cgroups: text("runtime-cgroups"),
        container_gc: container_gc::options(matches)?,
        set_kernel_tunables: switch(matches, "set-kernel-tunables", true),
        external_cloud_provider: cloud_provider(text("cloud-provider").as_deref())?,
        lock_file: lock_file(text("lock-file"), matches)?,
        ..Flags::default()
    };
    for flag in GROUPS.iter().flat_map(|(_, flags)| *flags) {
        let shown = match flag.target {
            Target::Field(field) => Some(ShownValue::Field(field)),
            Target::Node => Some(ShownValue::CommandLine(
                given(matches, flag).unwrap_or_default(),
            )),
            Target::Unused => None,
        };
        flags.shown.extend(shown.map(|shown| (flag.name, shown)));
        let Some(value) = given(matches, flag) else {
            continue;
        };
        match flag.target {
            Target::Node if flag.name == "node-labels" => {
                flags.node_labels = node_labels::node_labels(Some(&value))?;
            }
            Target::Node => {}
            Target::Unused => flags.without_effect.push(format!("--{}", flag.name)),
            Target::Field(field) => {
                if !support::has_effect_inside(field) {
                    flags.without_effect.push(format!("--{}", flag.name));
                }
                set(&mut flags.configuration, field, value);
            }
        }
    }
    checkpoint::check(&flags)?;
    Ok(flags)
}

/// The value of a flag on the command line, with repeated flags merged.
fn given(matches: &ArgMatches, flag: &Flag) -> Option<Value> {
    let mut values = matches.get_many::<Value>(flag.name)?.cloned();
    let first = values.next()?;
    Some(values.fold(first, |mut total, more| {
        value::accumulate(&mut total, more);
        total
    }))
}

/// The value of a flag that is true or false.
fn switch(matches: &ArgMatches, name: &str, default: bool) -> bool {
    let given = matches.get_one::<Value>(name).and_then(Value::as_bool);
    given.unwrap_or(default)
}

/// Sets the field at a dotted path.
fn set(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value);
        }
        Some((parent, rest)) => {
            if let Value::Object(child) = object
                .entry(parent)
                .or_insert_with(|| Value::Object(Map::new()))
            {
                set(child, rest, value);
            }
        }
    }
}

fn lock_file(
    path: Option<String>,
    matches: &ArgMatches,
) -> Result<Option<LockFileOptions>, String> {
    let exit_on_contention = switch(matches, "exit-on-lock-contention", false);
    match path {
        Some(path) => Ok(Some(LockFileOptions {
            path: PathBuf::from(path),
            exit_on_contention,
        })),
        None if exit_on_contention => {
            Err("--exit-on-lock-contention requires --lock-file".to_owned())
        }
        None => Ok(None),
    }
}

fn cloud_provider(text: Option<&str>) -> Result<bool, String> {
    match text {
        None => Ok(false),
        Some("external") => Ok(true),
        Some(other) => Err(format!(
            "--cloud-provider: invalid value {other:?}: must be empty or \"external\""
        )),
    }
}

/// `--root-dir` of the sub-commands that ask the running kubelet.
fn root_dir() -> Arg {
    Arg::new("root-dir")
        .long("root-dir")
        .value_name("DIR")
        .default_value("/var/lib/kubelet")
        .value_parser(clap::value_parser!(PathBuf))
        .help("The --root-dir of the running kubelet")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status_command::OutputFormat;

    fn run(args: &[&str]) -> Flags {
        match parse(["kubelet"].iter().chain(args)).unwrap() {
            Command::Run(flags) => *flags,
            other => panic!("not a run: {other:?}"),
        }
    }

    fn error(args: &[&str]) -> String {
        parse(["kubelet"].iter().chain(args))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_table_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn flags_take_their_value_either_way() {
        for args in [
            &["--pod-manifest-path=/m", "-v", "4"][..],
            &["--pod-manifest-path", "/m", "--v=4"],
            &["--pod_manifest_path", "/m", "-v=4"],
        ] {
            assert_eq!(
                Value::Object(run(args).configuration),
                json!({"staticPodPath": "/m", "logging": {"verbosity": 4}}),
                "{args:?}"
            );
        }
    }

    #[test]
    fn bools_need_no_value() {
        for (arg, on) in [
            ("--runonce", true),
            ("--runonce=true", true),
            ("--runonce=false", false),
        ] {
            assert_eq!(run(&[arg]).configuration["runOnce"], json!(on), "{arg}");
        }
    }

    #[test]
    fn the_last_of_a_flag_wins_and_lists_add_up() {
        let flags = run(&[
            "--max-pods=5",
            "--max-pods=7",
            "--cluster-dns=10.0.0.1",
            "--cluster-dns=10.0.0.2",
        ]);
        assert_eq!(
            Value::Object(flags.configuration),
            json!({"maxPods": 7, "clusterDNS": ["10.0.0.1", "10.0.0.2"]})
        );
    }

    #[test]
    fn what_kubeadm_writes_is_taken() {
        let flags = run(&[
            "--config=/var/lib/kubelet/config.yaml",
            "--container-runtime-endpoint=unix:///run/dockershim.sock",
            "--pod-infra-container-image=pause:3.10",
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--node-labels=tier=web,zone=a",
        ]);
        assert_eq!(
            flags.kubeconfig,
            Some(PathBuf::from("/etc/kubernetes/kubelet.conf"))
        );
        assert_eq!(flags.node_labels["tier"], "web");
        assert_eq!(flags.cert_dir, None);
        assert_eq!(flags.without_effect, ["--pod-infra-container-image"]);
    }

    #[test]
    fn faults_name_flag_value_and_what_is_allowed() {
        let text = error(&["--sync-frequency=5"]);
        assert!(
            text.contains("--sync-frequency") && text.contains("20s"),
            "{text}"
        );
        let text = error(&["--address=localhost"]);
        assert!(
            text.contains("localhost") && text.contains("IP address"),
            "{text}"
        );
        let text = error(&["--exit-on-lock-contention"]);
        assert!(text.contains("requires --lock-file"), "{text}");
        let text = error(&["--cloud-provider=aws"]);
        assert!(text.contains("\"external\""), "{text}");
        let text = error(&["--node-labels=node-role.kubernetes.io/control-plane="]);
        assert!(
            text.contains("must begin with kubelet.kubernetes.io"),
            "{text}"
        );
        let text = error(&["--node-ip=10.0.0.1,10.0.0.2"]);
        assert!(text.contains("one IPv4 and one IPv6"), "{text}");
        assert!(error(&["--pod-manifest-pat=/m"]).contains("--pod-manifest-path"));
    }

    #[test]
    fn versions_and_status() {
        assert!(matches!(
            parse(["kubelet", "--version"]),
            Ok(Command::Version { raw: false })
        ));
        assert!(matches!(
            parse(["kubelet", "--version=raw"]),
            Ok(Command::Version { raw: true })
        ));
        let Ok(Command::Status(options)) = parse([
            "kubelet",
            "status",
            "--root-dir=/r",
            "-n",
            "web",
            "-o",
            "wide",
        ]) else {
            panic!("not a status");
        };
        assert_eq!(options.root_dir, PathBuf::from("/r"));
        assert_eq!(options.namespace.as_deref(), Some("web"));
        assert_eq!(options.output, OutputFormat::Wide);
    }

    #[test]
    fn gc() {
        let Ok(Command::Gc(options)) = parse(["kubelet", "gc", "--dry-run", "--root-dir=/r"])
        else {
            panic!("not a collection");
        };
        assert_eq!(options.root_dir, PathBuf::from("/r"));
        assert!(error(&["gc"]).contains("--dry-run"));
    }

    #[test]
    fn logs() {
        let Ok(Command::Logs(options)) = parse([
            "kubelet", "logs", "web", "-c", "app", "-n", "ns", "-f", "--tail=5", "--since", "1m30s",
        ]) else {
            panic!("not logs");
        };
        assert_eq!(
            (options.pod.as_str(), options.namespace.as_str()),
            ("web", "ns")
        );
        assert_eq!(options.container.as_deref(), Some("app"));
        assert_eq!(options.query(), "follow=true&tailLines=5&sinceSeconds=90");
        assert!(error(&["logs"]).contains("POD"));
        assert!(error(&["logs", "web", "--since=5"]).contains("1m30s"));
        let text = error(&[
            "logs",
            "web",
            "--since=5s",
            "--since-time=2026-01-01T00:00:00Z",
        ]);
        assert!(text.contains("cannot be used with"), "{text}");
    }
}
