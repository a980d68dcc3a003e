//! The `kubelet` command: the node agent, `kubelet status`, `kubelet logs` and `kubelet gc`.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::anyhow;
use futures::{FutureExt as _, future::LocalBoxFuture};
use kubelet::{
    cli::{self, Command},
    config::{flags::Flags, settings::Settings},
    gc_command, logging, logs_command, run,
    status_command::{self, StatusError},
};
use kubelet_host::{bounded_io, oom_score, open_files, version};
use kubelet_pod_spec::identity::full_name;
use kubelet_traces::Export;
use tokio::runtime::Builder;

mod malloc;

/// The node agent is I/O-bound.
const WORKERS: usize = 2;
/// Threads for the kubelet's own files and for host name resolution.
const BLOCKING_THREADS: usize = 8;
/// How long a thread for files waits for more work. Short, since any work wakes the thread that has
/// waited the longest, so that all threads of a burst would stay.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The time that file operations in progress get at shutdown. Hung ones are abandoned.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    let done = match command {
        Command::Version { raw: false } => print(&(version::line() + "\n")),
        Command::Version { raw: true } => print(&(version::raw() + "\n")),
        Command::Status(options) => ask(status_command::run(&options).boxed_local()),
        Command::Logs(options) => logs(&options),
        Command::Gc(options) => ask(gc_command::run(&options).boxed_local()),
        Command::Run(flags) => run_node(&flags),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // The message of an error includes its causes.
            eprintln!("kubelet: {error}");
            ExitCode::FAILURE
        }
    }
}

fn logs(options: &logs_command::LogsOptions) -> anyhow::Result<ExitCode> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| anyhow!("cannot start: {error}"))?;
    let reading = async {
        let log = logs_command::open(options).await?;
        if let Some(note) = log.note() {
            eprintln!("{note}");
        }
        Ok::<_, logs_command::LogsError>(log)
    };
    let mut log = runtime.block_on(reading.boxed_local())?;
    let mut stdout = io::stdout().lock();
    while let Some(part) = runtime.block_on(log.next())? {
        match stdout.write_all(&part).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(anyhow!("cannot write to standard output: {error}")),
            Ok(()) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what the running kubelet answers.
fn ask(answer: LocalBoxFuture<'_, Result<String, StatusError>>) -> anyhow::Result<ExitCode> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| anyhow!("cannot start: {error}"))?;
    print(&runtime.block_on(answer)?)
}

fn run_node(flags: &Flags) -> anyhow::Result<ExitCode> {
    malloc::share_arena();
    let settings = Settings::load(flags)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS + bounded_io::MAX_THREADS)
        .thread_keep_alive(KEEP_ALIVE)
        .enable_all()
        .build()
        .map_err(|error| anyhow!("cannot start: {error}"))?;
    let traces = {
        let _inside = runtime.enter();
        let host = &settings.options.node.name;
        let export = settings.tracing.as_ref();
        export.map(|export| Export::new(export, host)).transpose()?
    };
    logging::init(
        settings.verbosity,
        settings.module_verbosity.clone(),
        settings.log_format,
        traces.as_ref(),
    );
    open_files::set_limit(settings.max_open_files);
    oom_score::set(settings.oom_score_adj);
    let results = runtime.block_on(run::run(settings).boxed_local());
    if let Some(traces) = traces {
        traces.finish(SHUTDOWN_LIMIT);
    }
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    let results = results?;
    // Only `--runonce` has results.
    let mut failed = false;
    let mut lines = String::new();
    for result in &results {
        let outcome = match &result.result {
            Ok(()) => "started",
            Err(reason) => {
                failed = true;
                reason
            }
        };
        lines += &format!("{}: {outcome}\n", full_name(&result.pod));
    }
    let code = print(&lines)?;
    Ok(if failed { ExitCode::FAILURE } else { code })
}

/// Prints to standard output. A closed pipe is not an error.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot write to standard output: {error}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
