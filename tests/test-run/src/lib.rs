//! A run of tests: how much it does, its random numbers, its child processes, and the checks that it
//! skips.

#![forbid(unsafe_code)]

pub mod mounts;
pub mod process;
pub mod random;
pub mod size;
pub mod skips;
