//! Commands that `ExecSync` runs.

use std::{sync::atomic::Ordering, time::Duration};

use cri_proto::runtime::v1 as cri;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::{FakeRuntime, Inner, Verb, lives::Event};

/// How often a command looks whether its container still runs.
const LOOK: Duration = Duration::from_millis(100);
/// Exit code of a command whose container ended.
const KILLED: i32 = 137;

/// One that runs, until it is dropped.
struct Command<'a>(&'a Inner);

impl<'a> Command<'a> {
    fn begin(runtime: &'a Inner) -> Self {
        runtime.commands.fetch_add(1, Ordering::Relaxed);
        Self(runtime)
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FakeRuntime {
    /// How many commands of `ExecSync` run.
    pub fn commands(&self) -> usize {
        self.0.commands.load(Ordering::Relaxed)
    }

    /// Runs a command until it ends by itself, by its deadline or with its container.
    pub(super) async fn run_command(
        &self,
        request: cri::ExecSyncRequest,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let handler = self.0.exec.lock().clone();
        let (id, command) = (&request.container_id, &request.cmd);
        self.note(id, Event::CommandAsked(command.clone()));
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
                ),
                None => (handler(container, &request.cmd), Duration::ZERO),
            })
        });
        let (mut answer, takes) = ran.await?.into_inner();
        let _command = Command::begin(&self.0);
        let limit = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        if !limit.is_zero() && takes > limit {
            self.outlived_by(&request.container_id, limit).await;
            let message = format!("the command ran for longer than {limit:?}");
            return Err(Status::deadline_exceeded(message));
        }
        if !self.outlived_by(&request.container_id, takes).await {
            answer.exit_code = KILLED;
        }
        self.note(id, Event::CommandEnded(command.clone(), answer.exit_code));
        Ok(answer)
    }

    /// Waits for so long; `false`: the container ended meanwhile.
    async fn outlived_by(&self, container: &str, takes: Duration) -> bool {
        let end = Instant::now() + takes;
        while Instant::now() < end {
            if self.0.world.lock().running(container).is_err() {
                return false;
            }
            sleep(LOOK.min(end - Instant::now())).await;
        }
        true
    }
}
