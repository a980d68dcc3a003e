//! The machine under the kubelet: the time of day, chance, file work that blocks, mounts,
//! SELinux, and the limits of the kubelet's own process. What a simulation has to repeat
//! goes through [`repeatable`] and [`clock`] alone.

pub mod clock;
pub mod file_work;
pub mod files;
pub mod foreign;
pub mod mount_info;
pub mod oom_score;
pub mod open_files;
pub mod repeatable;
pub mod selinux;
