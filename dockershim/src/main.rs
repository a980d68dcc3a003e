//! `dockershim`: parses the flags, builds the shim and runs it.

#![forbid(unsafe_code)]

use std::{io::IsTerminal as _, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use clap::Parser as _;
use dockershim::{
    Config, Shim,
    cli::{Cli, Command},
    container::checkpoint,
    doctor, health, open_files, server, streaming,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("dockershim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if cli.buildinfo {
        println!("{}", dockershim::cli::build_info());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Command::Doctor) = cli.command {
        let report = runtime()?.block_on(doctor::examine(&cli));
        print!("{report}");
        return Ok(ExitCode::from(u8::from(report.failed())));
    }
    let config = Config::try_from(&cli)?;
    // At debug level, the libraries would log hundreds of lines per request.
    let levels = Targets::new()
        .with_default(config.log_level.min(LevelFilter::WARN))
        .with_target("dockershim", config.log_level)
        .with_target("cri_streaming", config.log_level);
    tracing_subscriber::fmt()
        .with_max_level(config.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish()
        .with(levels)
        .init();
    if let Err(error) = open_files::raise_limit() {
        tracing::warn!(%error, "cannot raise the open file limit");
    }
    runtime()?.block_on(run(config))?;
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")
}

async fn run(config: Config) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.cancel();
    });
    let listener = server::listen(&config.listen)?;
    let watchers = match config.metrics_bind_addr {
        Some(address) => Some(health::listen(address).await?),
        None => None,
    };
    let shim = Shim::start(config, stop.clone());
    checkpoint::remove_incomplete(&shim.config.root_directory);
    if let Some(watchers) = watchers {
        tokio::spawn(health::serve(watchers, Arc::clone(&shim), stop.clone()));
    }
    let streaming = streaming::bind(&shim).await?;
    server::serve(shim, streaming, listener, stop).await?;
    Ok(())
}
