//! The process of a command inside a container: its end, and how to bring it about. The
//! engine has a call for neither.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{Shim, engine::EngineError};

/// The engine learns of a command's end a moment after its output ended. A command may
/// also close its output long before it ends, so the questions become rarer.
const FIRST_POLL: Duration = Duration::from_millis(10);
const SLOWEST_POLL: Duration = Duration::from_secs(1);
/// What a command gets to end by itself when its client has gone.
const GRACE: Duration = Duration::from_secs(2);

/// Waits until the command has ended; returns its exit code.
///
/// # Errors
/// The engine's.
pub async fn exit_code(shim: &Shim, exec: &str) -> Result<i32, EngineError> {
    let mut pause = FIRST_POLL;
    loop {
        let state = shim.engine.inspect_exec(exec).await?;
        if let (Some(false), Some(code)) = (state.running, state.exit_code) {
            return Ok(i32::try_from(code).unwrap_or(i32::MAX));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(SLOWEST_POLL);
    }
}

/// Ends a command that nobody waits for any more: its input has ended already; then come
/// the signal that its kind expects, and SIGKILL.
pub async fn end(shim: &Shim, exec: &str, container: &str, tty: bool) {
    let polite = if tty { Signal::HUP } else { Signal::TERM };
    for signal in [polite, Signal::KILL] {
        if tokio::time::timeout(GRACE, exit_code(shim, exec))
            .await
            .is_ok()
        {
            return;
        }
        kill(shim, exec, container, signal).await;
    }
}

/// Sends a signal to the command's process, if it still runs.
pub async fn kill(shim: &Shim, exec: &str, container: &str, signal: Signal) {
    let state = match shim.engine.inspect_exec(exec).await {
        Ok(state) => state,
        Err(error) => {
            tracing::warn!(container_id = container, %error, "a command may outlive its request");
            return;
        }
    };
    let pid = state
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    let (Some(true), Some(pid)) = (state.running, pid) else {
        return;
    };
    if let Err(error) = signal_process(pid, container, signal) {
        tracing::warn!(container_id = container, %error, "a command outlives its request");
    }
}

/// Signals process `pid` if it is one of `container`: the engine may count processes in
/// another namespace, and a number may have passed to another process.
fn signal_process(pid: Pid, container: &str, signal: Signal) -> std::io::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))?;
    if !cgroups.contains(container) {
        return Err(std::io::Error::other(format!(
            "process {pid:?} is none of this container's here"
        )));
    }
    pidfd_send_signal(process, signal)?;
    Ok(())
}
