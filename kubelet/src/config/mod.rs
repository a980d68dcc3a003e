//! What the kubelet is told: its own configuration, and the pods to run.

pub mod options;
pub mod update;
