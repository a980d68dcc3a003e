//! Conversion of CRI's security contexts to the engine's options.

mod annotations;
mod apparmor;
mod capabilities;
mod context;
mod identity;
mod namespaces;
mod oom_score;
mod seccomp;
mod selinux;

pub use annotations::annotations;
pub use capabilities::available as available_capabilities;
pub(crate) use capabilities::effective as effective_capabilities;
pub use context::{SecurityInputs, apply_to_container, apply_to_sandbox};
pub use namespaces::namespace_options;
pub(crate) use oom_score::CAP_SYS_RESOURCE;
pub use oom_score::{Clamp, OomScorePolicy};
