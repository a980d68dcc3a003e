//! OOM kills in the kernel's log (`/dev/kmsg`): of containers, and of processes when the node itself
//! runs out of memory.
//!
//! Only the kernel's own records count. They contain names that hostile processes choose: their own
//! (`prctl(PR_SET_NAME)`) and those of cgroups below a container's. The parser reads only what
//! precedes such a name, or what no name can contain.
//!
//! A record that the kernel split (under contention, or because it is longer than 1 KiB) does not
//! count, nor does a kill that the kernel did not log in full: it does so for ten in five seconds.
//!
//! Numbers of kills per container are in the cgroups' files on both versions (v1:
//! `memory.oom_control`, v2: `memory.events`, both as `oom_kill`), and complete, so this crate counts
//! nothing.

#![forbid(unsafe_code)]

mod container_id;
mod log;
mod oom_parser;
#[cfg(test)]
mod oom_parser_tests;

pub use self::{
    log::{KernelLog, Progress},
    oom_parser::OomKill,
};
