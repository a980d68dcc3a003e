//! Engine calls for commands in running containers.

use bollard::{
    exec::ResizeExecOptions,
    models::{ExecConfig, ExecInspectResponse},
};

use super::{CHANGE, Engine, EngineError, READ, hijack::DETACH_KEYS};

/// A command and its streams.
#[derive(Clone, Debug, Default)]
pub struct NewExec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether stdin is attached.
    pub stdin: bool,
    /// Whether stdout is attached.
    pub stdout: bool,
    /// Whether stderr is attached.
    pub stderr: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

impl Engine {
    /// Creates an exec in the container and returns its id.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `Conflict` if the container is not running.
    pub async fn create_exec(&self, container: &str, exec: NewExec) -> Result<String, EngineError> {
        let call = self.call("create a command in container", container, CHANGE);
        let docker = call.docker(self)?;
        let config = ExecConfig {
            attach_stdin: Some(exec.stdin),
            attach_stdout: Some(exec.stdout),
            attach_stderr: Some(exec.stderr),
            tty: Some(exec.tty),
            detach_keys: Some(DETACH_KEYS.into()),
            cmd: Some(exec.command),
            ..Default::default()
        };
        Ok(call.run(docker.create_exec(container, config)).await?.id)
    }

    /// Inspects an exec: whether it is running, its pid and its exit code.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn inspect_exec(&self, exec: &str) -> Result<ExecInspectResponse, EngineError> {
        let call = self.call("inspect command", exec, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_exec(exec)).await
    }

    /// Sets the size of the command's terminal, in characters.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause), also if the command is not running yet.
    pub async fn resize_exec(
        &self,
        exec: &str,
        width: u16,
        height: u16,
    ) -> Result<(), EngineError> {
        let call = self.call("resize the terminal of command", exec, READ);
        let docker = call.docker(self)?;
        call.run(docker.resize_exec(exec, ResizeExecOptions { height, width }))
            .await
    }
}
