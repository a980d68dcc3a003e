//! Image verbs, one file per CRI verb.

pub mod fs_info;
pub mod list;
pub mod pause;
pub mod pull;
pub mod remove;
pub mod status;
