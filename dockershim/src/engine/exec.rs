//! Commands inside a running container.

use bollard::{
    container::LogOutput,
    exec::{StartExecOptions, StartExecResults},
    models::{ExecConfig, ExecInspectResponse},
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use super::{CHANGE, Call, Cause, Engine, EngineError, READ};

/// What a command wrote, both streams together up to a limit.
#[derive(Debug, Default)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: BytesMut,
    /// Standard error.
    pub stderr: BytesMut,
}

impl Engine {
    /// Prepares `command` in the container and returns the exec's id.
    ///
    /// # Errors
    /// Any [`Cause`]; `Conflict` when the container does not run.
    pub async fn create_exec(
        &self,
        container: &str,
        command: Vec<String>,
    ) -> Result<String, EngineError> {
        let call = Call::new("create a command in container", container, CHANGE);
        let docker = call.docker(self)?;
        let config = ExecConfig {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command),
            ..Default::default()
        };
        Ok(call.run(docker.create_exec(container, config)).await?.id)
    }

    /// Runs a prepared command and gathers its output, up to `limit` bytes in
    /// all; the rest is read and dropped, so that the command never blocks on it.
    /// Has no deadline of its own once the command runs.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn run_exec(
        &self,
        exec: &str,
        limit: usize,
        into: &mut ExecOutput,
    ) -> Result<(), EngineError> {
        let call = Call::new("run command", exec, CHANGE);
        let docker = call.docker(self)?;
        let started = call
            .run(docker.start_exec(exec, None::<StartExecOptions>))
            .await?;
        let StartExecResults::Attached { mut output, .. } = started else {
            return Err(call.failed(Cause::Protocol("the command was not attached".into())));
        };
        while let Some(chunk) = output.next().await {
            match chunk.map_err(|error| call.failed(error.into()))? {
                LogOutput::StdOut { message } | LogOutput::Console { message } => {
                    let room = into.room(limit);
                    append(&mut into.stdout, &message, room);
                }
                LogOutput::StdErr { message } => {
                    let room = into.room(limit);
                    append(&mut into.stderr, &message, room);
                }
                LogOutput::StdIn { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether the command still runs, its process and its exit code.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn inspect_exec(&self, exec: &str) -> Result<ExecInspectResponse, EngineError> {
        let call = Call::new("inspect command", exec, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_exec(exec)).await
    }
}

impl ExecOutput {
    fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.stdout.len() + self.stderr.len())
    }
}

fn append(buffer: &mut BytesMut, message: &Bytes, room: usize) {
    buffer.extend_from_slice(&message[..message.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_stops_at_the_limit() {
        let mut output = ExecOutput::default();
        output.stderr.extend_from_slice(b"err");
        for _ in 0..3 {
            let room = output.room(10);
            append(&mut output.stdout, &Bytes::from_static(b"abcd"), room);
        }
        assert_eq!(&output.stdout[..], b"abcdabc");
    }
}
