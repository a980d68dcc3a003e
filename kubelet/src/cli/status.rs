//! The command line of `kubelet status`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::root_dir;
use crate::status_command::{OutputFormat, StatusOptions};

pub(super) fn command() -> Command {
    Command::new("status")
        .about("Print the pods of the kubelet running on this machine")
        .arg(root_dir())
        .arg(
            Arg::new("kubelet-address")
                .long("kubelet-address")
                .value_name("URL")
                .conflicts_with("root-dir")
                .help("Use the read-only port at this URL instead, such as http://127.0.0.1:10255"),
        )
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .help("Print only pods in this namespace"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_name("FORMAT")
                .value_parser(["table", "wide", "json"])
                .default_value("table")
                .help("Output format"),
        )
}

pub(super) fn options(matches: &ArgMatches) -> StatusOptions {
    StatusOptions {
        root_dir: matches
            .get_one::<PathBuf>("root-dir")
            .cloned()
            .unwrap_or_default(),
        kubelet_address: matches.get_one::<String>("kubelet-address").cloned(),
        namespace: matches.get_one::<String>("namespace").cloned(),
        output: match matches.get_one::<String>("output").map(String::as_str) {
            Some("wide") => OutputFormat::Wide,
            Some("json") => OutputFormat::Json,
            _ => OutputFormat::Table,
        },
    }
}
