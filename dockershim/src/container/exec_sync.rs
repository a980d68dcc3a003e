//! `ExecSync`.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use cri_proto::runtime::v1::{ExecSyncRequest, ExecSyncResponse};
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use super::{
    exec::require_running, exec_process, output::ProcessOutput, status::find, stop::wait_for_end,
};
use crate::{
    Error, Shim,
    engine::{self, Cause, EngineError, NewExec},
    shim::EXEC_OUTPUT_LIMIT,
};

/// How long a killed command may take to exit before the timeout is returned to the client.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a command in a container and waits for its exit, for at most `timeout` seconds; 0 means no
/// limit. The command is killed when its client is `gone`.
///
/// # Errors
/// `DeadlineExceeded` after the timeout, when the command has been killed; `FailedPrecondition` if
/// the container is not running.
pub async fn exec_sync(
    shim: &Arc<Shim>,
    request: ExecSyncRequest,
    gone: CancellationToken,
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
    require_running(&container)?;
    let id = container.id().to_owned();
    let command = NewExec {
        command: request.cmd,
        stdout: true,
        stderr: true,
        ..NewExec::default()
    };
    let exec = shim.engine.create_exec(&id, command).await?;
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let error = tokio::select! {
        finished = run(shim, &exec, &id) => return finished,
        () = over => Error::Deadline {
            action: "run a command in container",
            object: id.clone(),
            limit: limit.unwrap_or_default(),
        },
        () = gone.cancelled() => {
            Error::FailedPrecondition(format!("the client of command {exec} disconnected"))
        }
    };
    let killing = Arc::clone(shim);
    let kill = async move { exec_process::kill(&killing, &exec, &id).await };
    let _ = tokio::time::timeout(KILL_PATIENCE, shim.tasks.spawn(kill)).await;
    Err(error)
}

async fn run(shim: &Shim, exec: &str, container: &str) -> Result<ExecSyncResponse, Error> {
    let (reader, _writer) = shim.engine.start_exec(exec, false).await?;
    let reader = ProcessOutput::new(reader, wait_for_end(shim, container));
    let kept = AtomicUsize::new(0);
    let (mut stdout, mut stderr) = (LimitedOutput::new(&kept), LimitedOutput::new(&kept));
    let carried = engine::carry(reader, false, &mut stdout, &mut stderr).await;
    carried.map_err(|error| EngineError {
        action: "read the output of command",
        object: exec.to_owned(),
        cause: Cause::Unreachable(error.to_string()),
    })?;
    if stdout.cut || stderr.cut {
        shim.exec_output.reach();
    }
    let exited = exec_process::wait_for_exit(shim, exec, container).await?;
    if !exited.started {
        std::mem::swap(&mut stdout, &mut stderr);
    }
    Ok(ExecSyncResponse {
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        exit_code: exited.code,
    })
}

/// Keeps output until both streams together reach the limit, and drops the rest, so that the
/// command never blocks.
struct LimitedOutput<'a> {
    bytes: Vec<u8>,
    /// Whether any output was dropped.
    cut: bool,
    /// The total of both streams.
    sum: &'a AtomicUsize,
}

impl<'a> LimitedOutput<'a> {
    fn new(sum: &'a AtomicUsize) -> Self {
        Self {
            bytes: Vec::new(),
            cut: false,
            sum,
        }
    }
}

impl AsyncWrite for LimitedOutput<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let room = EXEC_OUTPUT_LIMIT.saturating_sub(self.sum.load(Ordering::Relaxed));
        let length = data.len().min(room);
        self.bytes.extend_from_slice(&data[..length]);
        self.cut |= length < data.len();
        self.sum.fetch_add(length, Ordering::Relaxed);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn output_stops_at_the_limit_of_both_streams() {
        let sum = AtomicUsize::new(0);
        let (mut stdout, mut stderr) = (LimitedOutput::new(&sum), LimitedOutput::new(&sum));
        stderr.write_all(b"err").await.unwrap();
        assert!(!stderr.cut);
        stdout.write_all(&vec![1; EXEC_OUTPUT_LIMIT]).await.unwrap();
        stderr.write_all(b"more").await.unwrap();
        assert_eq!(stdout.bytes.len(), EXEC_OUTPUT_LIMIT - 3);
        assert_eq!(stderr.bytes, b"err");
        assert!(stdout.cut && stderr.cut);
    }
}
