//! `ExecSync`.

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ContainerState, ExecSyncRequest, ExecSyncResponse};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::status::find;
use crate::{
    Error, Shim,
    engine::{Cause, EngineError, ExecOutput},
};

/// What is kept of the output. CRI allows 16 MiB for each stream, but the kubelet and
/// crictl take no answer of more than 16 MiB, so that is what both share, less the frame.
const OUTPUT_LIMIT: usize = 16 * 1024 * 1024 - 64;
/// The engine learns of a command's end a moment after its output ended.
const EXIT_POLL: Duration = Duration::from_millis(10);
const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs a command in a container and waits for its end, for `timeout` seconds at most;
/// 0 waits without limit.
///
/// # Errors
/// `DeadlineExceeded` after the timeout, when the command has been killed;
/// `FailedPrecondition` when the container does not run.
pub async fn exec_sync(
    shim: &Arc<Shim>,
    request: ExecSyncRequest,
) -> Result<ExecSyncResponse, Error> {
    if request.cmd.is_empty() {
        return Err(Error::invalid("cmd", "must not be empty"));
    }
    let limit = match u64::try_from(request.timeout) {
        Ok(0) => None,
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let reason = format!("{} is negative", request.timeout);
            return Err(Error::invalid("timeout", reason));
        }
    };
    let container = find(shim, &request.container_id).await?;
    let id = container.id();
    if container.status.state() != ContainerState::ContainerRunning {
        return Err(Error::FailedPrecondition(format!(
            "container {id} is {}; a command needs a running one",
            container.status.state().as_str_name()
        )));
    }
    let exec = shim.engine.create_exec(id, request.cmd).await?;
    let mut output = ExecOutput::default();
    let run = async {
        shim.engine
            .run_exec(&exec, OUTPUT_LIMIT, &mut output)
            .await?;
        exit_code(shim, &exec).await
    };
    let finished = match limit {
        None => run.await,
        Some(limit) => match tokio::time::timeout(limit, run).await {
            Ok(finished) => finished,
            Err(_) => {
                kill(shim, &exec, id).await;
                return Err(Error::Deadline {
                    action: "run a command in container",
                    object: id.to_owned(),
                    limit,
                });
            }
        },
    };
    let exit_code = finished?;
    Ok(ExecSyncResponse {
        stdout: output.stdout.freeze().into(),
        stderr: output.stderr.freeze().into(),
        exit_code,
    })
}

async fn exit_code(shim: &Shim, exec: &str) -> Result<i32, EngineError> {
    let deadline = tokio::time::Instant::now() + EXIT_PATIENCE;
    loop {
        let state = shim.engine.inspect_exec(exec).await?;
        if let (Some(false), Some(code)) = (state.running, state.exit_code) {
            return Ok(i32::try_from(code).unwrap_or(i32::MAX));
        }
        if tokio::time::Instant::now() > deadline {
            return Err(EngineError {
                action: "wait for the end of command",
                object: exec.to_owned(),
                cause: Cause::Deadline(EXIT_PATIENCE),
            });
        }
        tokio::time::sleep(EXIT_POLL).await;
    }
}

/// Kills the command's process. The engine has no call for that.
async fn kill(shim: &Shim, exec: &str, container: &str) {
    let state = match shim.engine.inspect_exec(exec).await {
        Ok(state) => state,
        Err(error) => {
            tracing::warn!(container_id = container, %error, "a command outlives its timeout");
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
    if let Err(error) = kill_process(pid, container) {
        tracing::warn!(container_id = container, %error, "a command outlives its timeout");
    }
}

/// Kills process `pid` if it is one of `container`: the engine may count processes in
/// another namespace, and a number may have passed to another process.
fn kill_process(pid: Pid, container: &str) -> std::io::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))?;
    if !cgroups.contains(container) {
        return Err(std::io::Error::other(format!(
            "process {pid:?} is none of this container's here"
        )));
    }
    pidfd_send_signal(process, Signal::KILL)?;
    Ok(())
}
