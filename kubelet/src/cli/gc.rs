//! The command line of `kubelet gc`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::root_dir;
use crate::gc_command::GcOptions;

pub(super) fn command() -> Command {
    Command::new("gc")
        .about("Tell which images and dead containers the kubelet running on this machine would remove now")
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .required(true)
                .action(ArgAction::SetTrue)
                .help("Remove nothing; the running kubelet collects garbage by itself"),
        )
        .arg(
            root_dir()
        )
}

pub(super) fn options(matches: &ArgMatches) -> GcOptions {
    GcOptions {
        root_dir: matches
            .get_one::<PathBuf>("root-dir")
            .cloned()
            .unwrap_or_default(),
    }
}
