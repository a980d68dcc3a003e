//! The machine below the kubelet: time of day, random numbers, blocking file work, mounts,
//! SELinux, and the limits of the kubelet's own process. A simulation replaces the clock,
//! randomness and threads through [`repeatable`] and [`clock`] alone.

#![forbid(unsafe_code)]

pub mod bounded_io;
pub mod bounded_program;
pub mod clock;
pub mod cpu_set;
pub mod file_work;
pub mod files;
pub mod go_bool;
pub mod host_ips;
pub mod iptables;
pub mod kernel_tunables;
pub mod local_node;
pub mod machine;
pub mod mount_info;
pub mod oom_score;
pub mod open_files;
pub mod readiness;
pub mod repeatable;
pub mod saver;
pub mod selinux;
pub mod state_file;
pub mod unix_socket;
pub mod version;
