//! Hostile input: what an image, a pod, a volume or a peer in the network can try with a node,
//! and that nothing of the node changes. One file a way in.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod deep_trees;
mod exec_output;
mod labels;
mod log_links;
mod lone_kubelet;
mod nfs_servers;
mod program_arguments;
mod strangers;
