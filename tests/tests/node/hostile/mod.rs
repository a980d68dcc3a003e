//! Hostile input from an image, a pod, a volume or a network peer: none of it may change the node.
//! One file per attack vector.

mod deep_trees;
mod exec_output;
mod labels;
mod log_links;
mod lone_kubelet;
mod nfs_servers;
mod program_arguments;
mod unauthenticated;
