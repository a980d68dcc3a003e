//! Disks of storage networks: logical units of SCSI targets.

mod disk_plugin;
mod iscsi;
mod kernel;

pub(super) use self::{disk_plugin::DiskPlugin, iscsi::Iscsi};
