//! Volumes of pods. The kubelet tells the [`VolumeManager`] which volumes a pod wants and waits for
//! them; the manager's reconciler mounts and unmounts them with one plugin per kind of volume.

#![forbid(unsafe_code)]

mod access;
pub mod atomic_writer;
mod attachment;
mod config_map;
pub mod csi;
pub mod disk;
mod downward_api;
mod empty_dir;
mod entries;
mod error;
mod expansion;
mod file_system;
mod files;
mod flex_volume;
mod held_devices;
mod host;
mod host_path;
mod huge_pages;
mod image;
mod in_tree;
mod local;
mod loop_device;
pub mod manager;
mod metrics;
mod mount;
mod mounted;
mod nfs;
pub mod ownership;
pub mod ownership_progress;
pub mod plugin;
pub mod plugins;
mod projected;
mod reconciler;
mod scsi;
mod secret;
mod selinux;
pub mod spec;
mod state_of_world;
pub mod subpath;
mod trust_bundles;
pub mod usage;

pub use self::{
    error::VolumeError,
    host::{VolumeHost, blocking_at, blocking_on_own_files, blocking_on_server},
    manager::VolumeManager,
    mount::tmpfs_may_be_swapped,
    mounted::{MountedVolume, MountedVolumes},
};
