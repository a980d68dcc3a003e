//! The process of an exec'd command: its exit, and how to kill it. The engine's API can neither
//! wait for the exit nor kill the process.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bollard::models::ExecInspectResponse;
use rustix::process::Signal;
use tokio::time::Instant;

use super::{output::PATIENCE, stop::wait_for_end};
use crate::{
    Error, Shim,
    process::{ProcessError, Processes},
};

/// The engine notices a command's exit shortly after its output ends. A command may also close its
/// output long before it exits, so the polls become less frequent.
const FIRST_POLL: Duration = Duration::from_millis(10);
const SLOWEST_POLL: Duration = Duration::from_secs(1);
/// How long a command may take to exit by itself after its client has disconnected.
const GRACE: Duration = Duration::from_secs(2);
/// How long to look for a command to kill, as the engine may be about to start it.
const KILL_PATIENCE: Duration = Duration::from_secs(60);

/// How a command exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandExit {
    /// The exit code.
    pub code: i32,
    /// Whether the command was started. If not, the output is the engine's error message.
    pub started: bool,
}

/// Waits until the command has exited.
///
/// # Errors
/// The engine's; `FailedPrecondition` if the container has exited and the engine does not report
/// the command's exit.
pub(super) async fn wait_for_exit(
    shim: &Shim,
    exec: &str,
    container: &str,
) -> Result<CommandExit, Error> {
    let reported = async {
        let mut pause = FIRST_POLL;
        loop {
            match shim.engine.inspect_exec(exec).await {
                Ok(state) => {
                    if let Some(exited) = CommandExit::of(&state) {
                        return Ok(Some(exited));
                    }
                }
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = slower(pause);
        }
    };
    let not_reported = async {
        wait_for_end(shim, container).await;
        tokio::time::sleep(PATIENCE).await;
    };
    let exited = tokio::select! {
        exited = reported => exited?,
        () = not_reported => None,
    };
    exited.ok_or_else(|| {
        let reason = "has exited, and the engine does not report the command's exit code";
        Error::FailedPrecondition(format!("container {container} {reason}"))
    })
}

/// Whether the command was started. If not, its output is the engine's error message; this is
/// reliable only once the engine has finished with the command.
pub(super) async fn has_started(shim: &Shim, exec: &str) -> bool {
    match shim.engine.inspect_exec(exec).await {
        Ok(state) => CommandExit::of(&state).is_none_or(|exited| exited.started),
        Err(error) => {
            tracing::debug!(%error, "cannot inspect the command; assuming that it was started");
            true
        }
    }
}

/// Ends a command that no client waits for any longer. Its input is closed already; then it gets
/// the signal that fits its kind (SIGHUP with a terminal, else SIGTERM), and finally SIGKILL.
pub(super) async fn end(shim: &Shim, exec: &str, container: &str, tty: bool) {
    let polite = if tty { Signal::HUP } else { Signal::TERM };
    let ends = || tokio::time::timeout(GRACE, wait_for_exit(shim, exec, container));
    if ends().await.is_ok() {
        return;
    }
    let pid = shim.engine.inspect_exec(exec).await.map(|state| state.pid);
    if let Ok(Some(pid)) = pid {
        // If this fails, SIGKILL fails the same way, and that is logged.
        let _ = signal(shim, container, pid, polite).await;
    }
    let _ = ends().await;
    kill(shim, exec, container).await;
}

/// Kills a command and its children, and waits for its exit.
pub(super) async fn kill(shim: &Shim, exec: &str, container: &str) {
    let deadline = Instant::now() + KILL_PATIENCE;
    let mut pause = FIRST_POLL;
    let failed = loop {
        let failed = match shim.engine.inspect_exec(exec).await {
            Ok(state) => match state.pid.filter(|pid| *pid > 0) {
                Some(pid) => match signal(shim, container, pid, Signal::KILL).await {
                    Ok(0) => return,
                    Ok(_) => "the command does not exit".to_owned(),
                    Err(error) => break error.to_string(),
                },
                None if CommandExit::of(&state).is_some() => return,
                None => "the command has not started".to_owned(),
            },
            // The container is gone, and the command with it.
            Err(error) if error.is_not_found() => return,
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            break failed;
        }
        tokio::time::sleep(pause).await;
        pause = slower(pause);
    };
    tracing::warn!(
        container_id = container,
        error = failed,
        "cannot kill the command, which may outlive its request"
    );
}

fn slower(pause: Duration) -> Duration {
    (pause * 3 / 2).min(SLOWEST_POLL)
}

/// Signals a command and its children; returns how many processes were signalled.
async fn signal(
    shim: &Shim,
    container: &str,
    pid: i64,
    signal: Signal,
) -> Result<usize, ProcessError> {
    let (processes, container) = (Arc::clone(&shim.processes), container.to_owned());
    let task =
        tokio::task::spawn_blocking(move || signal_session(&processes, &container, pid, signal));
    task.await.unwrap_or(Ok(0))
}

/// Signals the command's session: the command is its leader, and its children belong to it unless
/// they start their own.
fn signal_session(
    processes: &Processes,
    container: &str,
    leader: i64,
    signal: Signal,
) -> Result<usize, ProcessError> {
    let mut count = 0;
    for pid in std::iter::once(leader).chain(session(processes.proc(), leader)) {
        match processes.open(container, pid) {
            Ok(process) => count += usize::from(process.signal(signal).is_ok()),
            Err(ProcessError::Ended(_)) => {}
            Err(error) if pid == leader => return Err(error),
            // The pid has been reused by another process.
            Err(_) => {}
        }
    }
    Ok(count)
}

/// The other live processes of the session that `leader` started.
fn session(proc: &Path, leader: i64) -> Vec<i64> {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let in_session = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The command name, in parentheses, may contain any character.
        let (_, after) = stat.rsplit_once(") ")?;
        let mut fields = after.split(' ');
        let runs = !matches!(fields.next()?, "Z" | "X");
        let (_parent, _group, session) = (fields.next()?, fields.next()?, fields.next()?);
        (runs && pid != leader && session.parse() == Ok(leader)).then_some(pid)
    });
    in_session.collect()
}

// === impl CommandExit ===

impl CommandExit {
    /// `None` while the command is running or not yet started.
    fn of(state: &ExecInspectResponse) -> Option<Self> {
        let (Some(false), Some(code)) = (state.running, state.exit_code) else {
            return None;
        };
        Some(Self {
            code: i32::try_from(code).unwrap_or(i32::MAX),
            started: state.pid != Some(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_a_process_was_not_started() {
        let of = |running, exit_code, pid| {
            let state = ExecInspectResponse {
                running: Some(running),
                exit_code,
                pid,
                ..Default::default()
            };
            CommandExit::of(&state).map(|exited| (exited.code, exited.started))
        };
        assert_eq!(of(false, Some(126), Some(0)), Some((126, false)));
        assert_eq!(of(false, Some(126), Some(77)), Some((126, true)));
        assert_eq!(of(false, Some(0), None), Some((0, true)));
        assert_eq!(of(true, None, Some(77)), None);
        assert_eq!(of(false, None, Some(0)), None);
    }

    #[test]
    fn a_session_is_what_its_leader_began_and_has_not_ended() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, stat) in [
            ("7", "7 (sh) S 1 7 7 0 -1"),
            ("8", "8 (a) b) S 7 7 7 0 -1"),
            ("9", "9 (zombie) Z 7 7 7 0 -1"),
            ("10", "10 (7 (x) S 7 10 10 0 -1"),
            ("11", "11 (cut"),
            ("self", "8 (a) S 7 7 7 0 -1"),
        ] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("stat"), stat).unwrap();
        }
        assert_eq!(session(proc.path(), 7), [8]);
    }
}
