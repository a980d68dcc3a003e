//! How the storage that a volume uses is measured.

use std::{fmt, path::PathBuf, sync::Arc};

use futures::future::BoxFuture;

use crate::VolumeError;

/// How the usage of a mounted volume is measured. Measuring it may block or hang.
#[derive(Clone, Debug)]
pub enum UsageSource {
    /// The volume is not measured.
    None,
    /// The volume has a file system of its own, mounted at this path: statfs(2).
    FileSystem(PathBuf),
    /// The volume is a directory of a file system that it shares with others: what its files take
    /// is counted.
    Directory(PathBuf),
    /// The volume is the block device at this path: only its size is known.
    Device(PathBuf),
    /// The volume's driver reports it.
    Driver(Arc<dyn DriverVolume>),
}

/// A volume whose driver may report its usage.
pub trait DriverVolume: fmt::Debug + Send + Sync {
    /// Name of the driver.
    fn driver(&self) -> &str;

    /// The usage and the condition of the volume; `None` if the driver does not report them.
    ///
    /// # Errors
    /// The driver is not registered, or the call failed.
    fn usage(&self) -> BoxFuture<'_, Result<Option<DriverUsage>, VolumeError>>;
}

/// The usage of a volume as its driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverUsage {
    /// In bytes.
    pub bytes: Amounts,
    /// In inodes.
    pub inodes: Amounts,
    /// `None` if the driver does not monitor the volume's condition.
    pub condition: Option<VolumeCondition>,
}

/// Amounts of one unit; zero if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// The capacity.
    pub total: u64,
    /// The part that pods can still use.
    pub available: u64,
    /// The part in use.
    pub used: u64,
}

/// The condition of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeCondition {
    /// The volume does not work properly.
    pub is_abnormal: bool,
    /// The driver's description, limited in length.
    pub message: String,
}
