//! Probes of containers: what they found last.

pub mod results;
