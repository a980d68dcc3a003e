//! What the world of the fake runtime is made of.

use std::time::Duration;

use cri_proto::runtime::v1 as cri;

/// A sandbox of the fake runtime.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// What it was made with.
    pub config: cri::PodSandboxConfig,
    /// The handler it was made with.
    pub runtime_handler: String,
    /// Whether it runs.
    pub state: cri::PodSandboxState,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Empty on the host network.
    pub ip: String,
    /// Of the other family; empty unless the runtime has both.
    pub second_ip: String,
}

impl Sandbox {
    /// UID of its pod.
    pub fn pod_uid(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.uid)
    }
}

/// A container of the fake runtime.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// The sandbox it lives in.
    pub sandbox_id: String,
    /// What it was made with.
    pub config: cri::ContainerConfig,
    /// Where it is in its life.
    pub state: cri::ContainerState,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Nanoseconds since the epoch; 0 before the start.
    pub started_at: i64,
    /// Nanoseconds since the epoch; 0 before the exit.
    pub finished_at: i64,
    /// Meaningful once it has exited.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, once it has exited.
    pub reason: String,
    /// Id of its image.
    pub image_id: String,
    /// What stats verbs report.
    pub usage: Usage,
    /// Whether the runtime has lost sight of it.
    pub is_lost: bool,
}

impl Container {
    /// Its name in the pod spec.
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.name)
    }

    /// Whether it runs, as far as the machine knows.
    pub fn runs(&self) -> bool {
        self.state == cri::ContainerState::ContainerRunning
    }

    /// Its state, as far as the runtime knows.
    pub fn told_state(&self) -> cri::ContainerState {
        if self.is_lost && self.runs() {
            cri::ContainerState::ContainerUnknown
        } else {
            self.state
        }
    }

    /// Its attempt: how often a container of this name was made before.
    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |m| m.attempt)
    }
}

/// Resource usage of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Working set in bytes.
    pub memory_bytes: u64,
}

/// How containers of one name behave.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// They exit by themselves this long after the start, with this code.
    pub exits_after: Option<(Duration, i32)>,
    /// How long they take to end after the stop signal; `None`: they ignore it.
    pub stops_after: Option<Duration>,
    /// What commands come to in them; `None`: the runtime's handler answers.
    pub exec: Option<Exec>,
    /// Their first so many attempts exit with code 1 instead.
    pub fails_first: u32,
}

/// What a command comes to.
#[derive(Clone, Debug, Default)]
pub struct Exec {
    /// Its exit code.
    pub code: i32,
    /// What it prints.
    pub output: String,
    /// How long it takes.
    pub takes: Duration,
    /// Whether its deadline ends the call alone, as with Docker, and not the command.
    pub outlives_deadline: bool,
}

impl Default for Behaviour {
    /// Runs until stopped, and stops at once.
    fn default() -> Self {
        Self {
            exits_after: None,
            stops_after: Some(Duration::ZERO),
            exec: None,
            fails_first: 0,
        }
    }
}
