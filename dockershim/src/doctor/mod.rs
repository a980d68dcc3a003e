//! `dockershim doctor`: whether this node has what the shim needs, and what to do about
//! what is missing. It looks, and changes nothing.

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

/// Of the kernel's files.
const PROC: &str = "/proc";
/// The `--network-plugin` that has requirements of its own.
const CNI: &str = "cni";

/// Makes every check that fits the flags.
pub async fn examine(cli: &Cli) -> Report {
    let mut checks = vec![flags(cli)];
    // A flag that cannot be read has failed in the first row.
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
        // systemd alone knows whom it handed the socket to.
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
        Ok(_) => Check::ok("flags", "can be used"),
        Err(error) => Check::fail(
            "flags",
            error.to_string(),
            "correct the flag; dockershim --help describes it",
        ),
    }
}
