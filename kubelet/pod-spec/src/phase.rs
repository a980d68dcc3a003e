//! The phase of a pod.

/// The phase of a pod in its lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Some container has not been started yet.
    Pending,
    /// Every container was started, and one runs or will be restarted.
    Running,
    /// Every container succeeded, and none will be restarted.
    Succeeded,
    /// Every container ended, one of them failed, and none will be restarted.
    Failed,
}

impl Phase {
    /// The phase as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether the phase is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Parses the phase in a pod's status; `Pending` if there is none.
    pub fn parse(phase: Option<&str>) -> Self {
        match phase {
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            _ => Self::Pending,
        }
    }
}
