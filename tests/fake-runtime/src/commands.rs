//! Commands that `ExecSync` runs.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cri_proto::runtime::v1 as cri;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::{FakeRuntime, Inner, Verb, history::ContainerEvent};

/// The interval at which a command checks that its container still runs.
const LOOK: Duration = Duration::from_millis(100);
/// The exit code of a command whose container ended.
const KILLED: i32 = 137;

/// A running command; it ends when this is dropped.
struct Command(Arc<Inner>);

impl Command {
    fn begin(runtime: &Arc<Inner>) -> Self {
        runtime.commands.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(runtime))
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FakeRuntime {
    /// The number of `ExecSync` commands that are running.
    pub fn commands(&self) -> usize {
        self.0.commands.load(Ordering::Relaxed)
    }

    /// Runs a command until it exits, its deadline passes or its container ends.
    pub(super) async fn run_command(
        &self,
        request: cri::ExecSyncRequest,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let handler = self.0.exec.lock().clone();
        let (id, command) = (&request.container_id, &request.cmd);
        self.note(id, ContainerEvent::ExecCalled(command.clone()));
        let ran = self.call(Verb::ExecSync, |world| {
            let container = world.running(&request.container_id)?;
            Ok(match world.behaviour(container.name()).exec {
                Some(exec) => (
                    cri::ExecSyncResponse {
                        stdout: exec.output.into_bytes(),
                        stderr: Vec::new(),
                        exit_code: exec.code,
                    },
                    exec.takes,
                    exec.outlives_deadline,
                ),
                None => (handler(container, &request.cmd), Duration::ZERO, false),
            })
        });
        let (mut answer, takes, goes_on) = ran.await?.into_inner();
        let running = Command::begin(&self.0);
        let limit = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        if !limit.is_zero() && takes > limit {
            self.outlived_by(&request.container_id, limit).await;
            if goes_on {
                self.go_on(running, request.container_id.clone(), takes - limit);
            }
            let message = format!("the command ran for longer than {limit:?}");
            return Err(Status::deadline_exceeded(message));
        }
        if !self.outlived_by(&request.container_id, takes).await {
            answer.exit_code = KILLED;
        }
        self.note(
            id,
            ContainerEvent::ExecEnded(command.clone(), answer.exit_code),
        );
        Ok(answer)
    }

    /// Keeps a command running for `takes` longer, after its call has timed out.
    fn go_on(&self, command: Command, container: String, takes: Duration) {
        let this = self.clone();
        tokio::spawn(async move {
            this.outlived_by(&container, takes).await;
            drop(command);
        });
    }

    /// Waits for `takes`. Returns `false` if the container ended meanwhile.
    async fn outlived_by(&self, container: &str, takes: Duration) -> bool {
        let end = Instant::now() + takes;
        while Instant::now() < end {
            let runs = self.0.world.lock().container(container).map(|c| c.runs());
            if !runs.unwrap_or_default() {
                return false;
            }
            sleep(LOOK.min(end - Instant::now())).await;
        }
        true
    }
}
