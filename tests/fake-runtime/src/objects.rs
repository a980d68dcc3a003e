//! The objects in the fake runtime's state.

use std::time::Duration;

use cri_proto::runtime::v1 as cri;

/// A sandbox of the fake runtime.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// The config of `RunPodSandbox`.
    pub config: cri::PodSandboxConfig,
    /// The runtime handler of `RunPodSandbox`.
    pub runtime_handler: String,
    /// Ready or not ready.
    pub state: cri::PodSandboxState,
    /// In nanoseconds since the epoch.
    pub created_at: i64,
    /// Empty on the host network.
    pub ip: String,
    /// The IPv6 address; empty unless the runtime is dual-stack.
    pub second_ip: String,
}

impl Sandbox {
    /// The UID of its pod.
    pub fn pod_uid(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.uid)
    }
}

/// A container of the fake runtime.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// The id of its sandbox.
    pub sandbox_id: String,
    /// The config of `CreateContainer`.
    pub config: cri::ContainerConfig,
    /// Its actual state; the runtime may report another one.
    pub state: cri::ContainerState,
    /// In nanoseconds since the epoch.
    pub created_at: i64,
    /// In nanoseconds since the epoch; 0 before the start.
    pub started_at: i64,
    /// In nanoseconds since the epoch; 0 before the exit.
    pub finished_at: i64,
    /// Valid once it has exited.
    pub exit_code: i32,
    /// `Completed`, `Error` or `OOMKilled`, once it has exited.
    pub reason: String,
    /// The id of its image.
    pub image_id: String,
    /// The usage that the stats verbs report.
    pub usage: Usage,
    /// Whether the runtime reports its state as unknown while it runs.
    pub is_lost: bool,
}

impl Container {
    /// Its name in the pod spec.
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.name)
    }

    /// Whether it is actually running, whatever state the runtime reports.
    pub fn runs(&self) -> bool {
        self.state == cri::ContainerState::ContainerRunning
    }

    /// The state that the runtime reports.
    pub fn reported_state(&self) -> cri::ContainerState {
        if self.is_lost && self.runs() {
            cri::ContainerState::ContainerUnknown
        } else {
            self.state
        }
    }

    /// Its attempt: the number of earlier containers with this name.
    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |m| m.attempt)
    }
}

/// The resource usage of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Working set in bytes.
    pub memory_bytes: u64,
}

/// The behaviour of the containers of a name.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// They exit by themselves this long after the start, with this code.
    pub exits_after: Option<(Duration, i32)>,
    /// The time that they take to end after the stop signal. `None`: they ignore it.
    pub stops_after: Option<Duration>,
    /// Their exit code after the stop signal.
    pub stop_code: i32,
    /// The result of commands in them. `None`: the runtime's handler answers.
    pub exec: Option<Exec>,
    /// The number of first attempts that exit with code 1 instead.
    pub fails_first: u32,
}

/// The result of a command.
#[derive(Clone, Debug, Default)]
pub struct Exec {
    /// Its exit code.
    pub code: i32,
    /// Its output.
    pub output: String,
    /// Its duration.
    pub takes: Duration,
    /// Whether the deadline ends only the call and the command runs on, as with Docker.
    pub outlives_deadline: bool,
}

impl Default for Behaviour {
    /// The container runs until stopped, and stops at once.
    fn default() -> Self {
        Self {
            exits_after: None,
            stops_after: Some(Duration::ZERO),
            stop_code: 143,
            exec: None,
            fails_first: 0,
        }
    }
}
