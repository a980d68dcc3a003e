//! What the tests lean on: a fake runtime, test images, a registry, a node of
//! both binaries.

#![forbid(unsafe_code)]

pub mod fake_runtime;
