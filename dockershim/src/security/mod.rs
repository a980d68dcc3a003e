//! CRI's security contexts in the engine's terms.

mod apparmor;
mod capabilities;
mod context;
mod namespaces;
mod oom_score;
mod seccomp;
mod selinux;

pub use context::{apply_to_container, apply_to_sandbox};
pub use namespaces::namespace_options;
pub(crate) use oom_score::{CAP_SYS_RESOURCE, effective_capabilities};
pub use oom_score::{Clamp, OomScorePolicy};
