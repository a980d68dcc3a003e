//! Bandwidth limits on the engine's own bridge, by tc(8): of what a pod receives, at its bridge port,
//! and of what it sends, at its own device. A container with `NET_ADMIN` can change the latter.
//!
//! They exist only once the sandbox runs. Limits that the shim did not set before a crash, or that
//! were lost because a user restarted the sandbox, are set in the next round of [`crate::resync`].

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use cri_proto::runtime::v1::PodSandboxState;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::{Mutex, oneshot};

use super::{
    bandwidth::Limits,
    bridge_port::{self, BridgePortError},
};
use crate::{
    Error,
    model::{Sandbox, Snapshot},
    process::{ProcessError, Processes},
};

/// How long a packet may wait.
const LATENCY: &str = "25ms";
/// What may be sent at once: 10 ms at the limit, and at least a few of the largest packets.
const BURSTS_PER_SECOND: u64 = 100;
const MIN_BURST: u64 = 128 << 10;
/// tc's bursts have 32 bits.
const MAX_BURST: u64 = 1 << 30;
/// For one run of tc, in seconds.
const TIME_LIMIT: &str = "30";
/// The exit code of timeout(1) if it finds no such program.
const NOT_FOUND: i32 = 127;

/// The limits of all sandboxes.
#[derive(Debug)]
pub struct Shaping {
    processes: Arc<Processes>,
    program: PathBuf,
    /// The result of the last attempt, by sandbox. Locked during one.
    attempts: Mutex<HashMap<String, Attempt>>,
}

/// The result of setting the limits of a sandbox whose first process is `pid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    pid: i64,
    set: bool,
}

/// Why limits could not be set.
#[derive(Debug, thiserror::Error)]
enum ShapingError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Port(#[from] BridgePortError),
    #[error("cannot enter the sandbox's network namespace: {0}")]
    Namespace(#[source] io::Error),
    #[error("cannot run timeout of coreutils: {0}")]
    Timeout(#[source] io::Error),
    #[error("{} is not installed; install iproute2", .0.display())]
    NotInstalled(PathBuf),
    #[error("{command}: {output}")]
    Refused { command: String, output: String },
    #[error("panicked: this is a bug")]
    Panicked,
}

impl Shaping {
    /// Limits set by `tc` of the search path.
    pub fn new(processes: Arc<Processes>) -> Self {
        Self {
            processes,
            program: "tc".into(),
            attempts: Mutex::default(),
        }
    }

    /// Sets the limits in the annotations of a running sandbox on the engine's bridge.
    ///
    /// # Errors
    /// `InvalidArgument` naming the annotation; `FailedPrecondition` if a limit cannot be set.
    pub async fn set(&self, sandbox: &Sandbox) -> Result<(), Error> {
        if Limits::of(&sandbox.status.annotations)? == Limits::default() {
            return Ok(());
        }
        let mut attempts = self.attempts.lock().await;
        self.try_to_set(sandbox, &mut attempts).await
    }

    /// Sets the limits of every running sandbox on the bridge that does not have them, and forgets
    /// removed sandboxes.
    pub async fn set_missing(&self, snapshot: &Snapshot) {
        let mut attempts = self.attempts.lock().await;
        attempts.retain(|id, _| snapshot.contains(id));
        for sandbox in snapshot.sandboxes() {
            let runs = sandbox.status.state() == PodSandboxState::SandboxReady;
            if !runs || sandbox.provisional || sandbox.cni || sandbox.has_host_network() {
                continue;
            }
            let before = attempts.get(&sandbox.status.id).copied();
            let is = |set| {
                let pid = sandbox.pid;
                before == Some(Attempt { pid, set })
            };
            if !is(true)
                && let Err(error) = self.try_to_set(sandbox, &mut attempts).await
                && !is(false)
            {
                tracing::warn!(
                    sandbox = sandbox.docker_name, sandbox_id = sandbox.status.id, %error,
                    "a running pod has no bandwidth limit; retrying every 30 s"
                );
            }
        }
    }

    async fn try_to_set(
        &self,
        sandbox: &Sandbox,
        attempts: &mut HashMap<String, Attempt>,
    ) -> Result<(), Error> {
        let set = match Limits::of(&sandbox.status.annotations) {
            Ok(limits) if limits == Limits::default() => return Ok(()),
            Ok(limits) => self.apply(sandbox, limits).await.map_err(|error| {
                Error::FailedPrecondition(format!(
                    "cannot limit the pod's bandwidth (annotations \
                     kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth): {error}"
                ))
            }),
            Err(error) => Err(error),
        };
        let attempt = Attempt {
            pid: sandbox.pid,
            set: set.is_ok(),
        };
        attempts.insert(sandbox.status.id.clone(), attempt);
        set
    }

    async fn apply(&self, sandbox: &Sandbox, limits: Limits) -> Result<(), ShapingError> {
        let (processes, program) = (Arc::clone(&self.processes), self.program.clone());
        let (id, pid) = (sandbox.status.id.clone(), sandbox.pid);
        let (answer, answered) = oneshot::channel();
        // In its own thread, which ends in the sandbox's network namespace.
        let work = move || drop(answer.send(apply(&processes, &program, &id, pid, limits)));
        let thread = std::thread::Builder::new().name("shaping".into());
        thread.spawn(work).map_err(ShapingError::Namespace)?;
        answered.await.unwrap_or(Err(ShapingError::Panicked))
    }
}

fn apply(
    processes: &Processes,
    program: &Path,
    sandbox_id: &str,
    pid: i64,
    limits: Limits,
) -> Result<(), ShapingError> {
    let process = processes.open(sandbox_id, pid)?;
    let failed = |source| ProcessError::File { pid, source };
    let inside = process.open(bridge_port::DEVICES_INSIDE).map_err(failed)?;
    let inside = PathBuf::from(format!("/proc/self/fd/{}", inside.as_raw_fd()));
    let namespace: OwnedFd = process.network_namespace().map_err(failed)?;
    let ends = bridge_port::find(&inside, Path::new(bridge_port::DEVICES))?;
    if let Some(rate) = limits.ingress {
        limit(program, &ends.port, rate)?;
    }
    if let Some(rate) = limits.egress {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| ShapingError::Namespace(error.into()))?;
        limit(program, &ends.inside, rate)?;
    }
    Ok(())
}

/// Limits what leaves through a device, to bits per second.
fn limit(program: &Path, device: &Path, rate: u64) -> Result<(), ShapingError> {
    let device = device.file_name().unwrap_or(OsStr::new(""));
    let burst = (rate / 8 / BURSTS_PER_SECOND).clamp(MIN_BURST, MAX_BURST);
    // A hung tc would keep all limited pods waiting.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", TIME_LIMIT]).arg(program);
    command.args(["qdisc", "replace", "dev"]).arg(device);
    command.args(["root", "tbf", "rate", &format!("{rate}bit")]);
    command.args(["burst", &format!("{burst}b"), "latency", LATENCY]);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(ShapingError::Timeout)?;
    if output.status.success() {
        return Ok(());
    }
    if output.status.code() == Some(NOT_FOUND) {
        return Err(ShapingError::NotInstalled(program.to_owned()));
    }
    let wrote = String::from_utf8_lossy(&output.stderr);
    Err(ShapingError::Refused {
        command: format!("{command:?}").replace('"', ""),
        output: format!("{} {}", output.status, wrote.trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tc_is_named_with_its_package() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tc");
        let error = limit(&program, Path::new("/sys/class/net/none"), 1_000).unwrap_err();
        let expected = format!("{} is not installed; install iproute2", program.display());
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn what_tc_refuses_is_said_with_its_words() {
        let refusal = Path::new("/sys/class/net/no-such-device");
        let error = limit(Path::new("ls"), refusal, 1_000)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ls qdisc replace dev no-such-device root tbf rate 1000bit"),
            "{error}"
        );
        assert!(error.contains("exit status: 2"), "{error}");
    }
}
