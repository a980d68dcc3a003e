//! Pods, from a stream of updates to running containers and back to their
//! status: the whole core of the kubelet on the fake runtime and paused time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod csi;
mod edits;
mod failures;
mod images;
mod many;
mod node;
mod objects;
mod probes;
mod resize;
mod restarts;
mod run_once;
mod starts;
mod status;
mod volumes;
