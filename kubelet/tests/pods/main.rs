//! Pods from a stream of updates to running containers and back to their status: the kubelet's core
//! on the fake runtime and paused time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod allocation;
mod cgroups;
mod claims;
mod cluster;
mod csi;
mod deadline;
mod devices;
mod dns;
mod edits;
mod environment;
mod ephemeral;
mod evented;
mod events;
mod exclusive_cpus;
mod failures;
mod image_names;
mod images;
mod lagging_lists;
mod log_lines;
mod logs;
mod lost_answers;
mod many;
mod metrics;
mod node;
mod node_object;
mod objects;
mod oom_kills;
mod pod_resources;
mod probes;
mod program_arguments;
mod resize;
mod resize_after_takeover;
mod resize_of_pods;
mod restart_rules;
mod restarts;
mod run_once;
mod runtime_class;
mod runtime_state;
mod security;
mod shutdown;
mod sidecars;
mod starts;
mod status;
mod termination;
mod unknown_state;
mod usage;
mod volumes;
