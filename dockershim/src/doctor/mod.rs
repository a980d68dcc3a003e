//! `dockershim doctor`: checks whether the node meets the shim's requirements, and suggests
//! remedies. It changes nothing.

mod cni;
mod cri_socket;
mod engine;
mod engine_info;
mod kernel;
mod paths;
mod report;

use std::path::Path;

pub use report::{Check, Report, Verdict};

use crate::{
    Config,
    cli::Cli,
    config::{Listen, LogDriver, parse_bind, parse_listen, parse_log_driver, read_docker_endpoint},
};

/// The mount point of procfs.
const PROC: &str = "/proc";
/// The `--network-plugin` value with its own requirements.
const CNI: &str = "cni";

/// Runs all checks that apply to the flags.
pub async fn examine(cli: &Cli) -> Report {
    let mut checks = vec![flags(cli)];
    // An invalid flag is already reported by the first check.
    if let Ok(endpoint) = read_docker_endpoint(cli) {
        let log_driver = parse_log_driver(&cli.log_driver).unwrap_or(LogDriver::JsonFile);
        checks.extend(engine::check(&endpoint, log_driver).await);
    }
    checks.extend(kernel::check(Path::new(PROC)));
    let shim_may_run = match parse_listen(&cli.container_runtime_endpoint) {
        Ok(Listen::Unix(socket)) => {
            let server = cri_socket::who_serves(&socket);
            checks.push(cri_socket::check(&socket, server.as_ref()));
            checks.push(paths::socket_directory(&socket));
            server.is_some_and(|server| server.is_shim())
        }
        // Only systemd knows which process has the socket.
        Ok(Listen::Activated) => true,
        Err(_) => false,
    };
    checks.push(paths::root_directory(Path::new(&cli.root_directory)));
    for (name, flag, address) in [
        (
            "streaming address",
            "streaming-bind-addr",
            &cli.streaming_bind_addr,
        ),
        (
            "metrics address",
            "metrics-bind-addr",
            &cli.metrics_bind_addr,
        ),
    ] {
        if let Ok(address) = parse_bind(address) {
            checks.push(paths::address(name, flag, address, shim_may_run));
        }
    }
    if cli.network_plugin == CNI {
        let programs = cli.cni_bin_dir.split(',').map(Path::new);
        checks.extend(cni::check(
            Path::new(&cli.cni_conf_dir),
            &programs.collect::<Vec<_>>(),
        ));
    }
    Report::new(checks)
}

fn flags(cli: &Cli) -> Check {
    match Config::try_from(cli) {
        Ok(_) => Check::ok("flags", "valid"),
        Err(error) => Check::fail(
            "flags",
            error.to_string(),
            "fix the flag; see dockershim --help",
        ),
    }
}
