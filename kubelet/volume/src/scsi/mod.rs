//! Disks of storage networks: logical units of SCSI targets, over iSCSI or Fibre Channel.

mod disk_plugin;
mod fibre_channel;
mod iscsi;
mod kernel;

pub(super) use self::{disk_plugin::DiskPlugin, fibre_channel::FibreChannel, iscsi::Iscsi};
