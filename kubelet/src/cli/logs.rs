//! The command line of `kubelet logs`, with the flags of `kubectl logs`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};
use go_duration::GoDuration;
use jiff::Timestamp;

use super::root_dir;
use crate::logs_command::LogsOptions;

pub(super) fn command() -> Command {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("logs")
        .about("Print the log of a container of the kubelet running on this machine")
        .arg(
            Arg::new("pod")
                .value_name("POD")
                .required(true)
                .help("Name of the pod, with or without the node name suffix"),
        )
        .arg(
            Arg::new("container")
                .long("container")
                .short('c')
                .value_name("CONTAINER")
                .help("Name of the container, if the pod has several"),
        )
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .default_value("default")
                .help("Namespace of the pod"),
        )
        .arg(
            switch(
                "follow",
                "Follow the log, and print new lines until the container terminates",
            )
            .short('f'),
        )
        .arg(switch("previous", "Print the log of the previous instance").short('p'))
        .arg(switch("timestamps", "Prefix each line with its timestamp"))
        .arg(
            Arg::new("tail")
                .long("tail")
                .value_name("LINES")
                .allow_negative_numbers(true)
                .default_value("-1")
                .value_parser(clap::value_parser!(i64))
                .help("Number of lines to print from the end of the log; -1 for all"),
        )
        .arg(
            Arg::new("since")
                .long("since")
                .value_name("DURATION")
                .value_parser(|text: &str| {
                    let since: GoDuration = text.parse().map_err(|error| format!("{error}"))?;
                    let since = since.to_std().filter(|since| !since.is_zero());
                    since.ok_or_else(|| "must be longer than 0s".to_owned())
                })
                .help("Print only lines newer than this duration, such as 5s, 2m or 3h"),
        )
        .arg(
            Arg::new("since-time")
                .long("since-time")
                .value_name("TIME")
                .conflicts_with("since")
                .value_parser(clap::value_parser!(Timestamp))
                .help("Print only lines after this time (RFC 3339)"),
        )
        .arg(
            Arg::new("limit-bytes")
                .long("limit-bytes")
                .value_name("BYTES")
                .value_parser(clap::value_parser!(u64).range(1..))
                .help("Maximum number of bytes to print"),
        )
        .arg(root_dir())
}

pub(super) fn options(matches: &ArgMatches) -> LogsOptions {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    LogsOptions {
        root_dir: matches
            .get_one::<PathBuf>("root-dir")
            .cloned()
            .unwrap_or_default(),
        namespace: text("namespace").unwrap_or_default(),
        pod: text("pod").unwrap_or_default(),
        container: text("container"),
        follow: matches.get_flag("follow"),
        previous: matches.get_flag("previous"),
        timestamps: matches.get_flag("timestamps"),
        tail: matches
            .get_one("tail")
            .and_then(|lines: &i64| u64::try_from(*lines).ok()),
        since: matches.get_one("since").copied(),
        since_time: matches.get_one("since-time").copied(),
        limit_bytes: matches.get_one("limit-bytes").copied(),
    }
}
