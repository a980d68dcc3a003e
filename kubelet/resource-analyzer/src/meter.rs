//! Measures one volume, or the files of one pod.

use std::{fmt, io, path::Path, path::PathBuf, sync::Arc};

use jiff::Timestamp;
use kubelet_host::{
    bounded_io::{IoPermit, WALKS},
    clock,
};
use kubelet_volume::usage::{Amounts, DriverVolume, UsageSource, VolumeCondition};
use rustix::fs::StatFs;
use tokio::time::Instant;

use crate::{
    directory::{self, Pace},
    error::MeasureError,
    file_system, files,
    metrics::Durations,
    threads::{blocking, permit},
    usage::PodFiles,
    walks::Walk,
};

/// The measured part of a volume's usage.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) at: Timestamp,
    pub(crate) bytes: Amounts,
    pub(crate) inodes: Amounts,
    pub(crate) condition: Option<VolumeCondition>,
}

/// statfs(2), or what takes its place in a test.
pub(crate) type StatFileSystem = Arc<dyn Fn(&Path) -> io::Result<StatFs> + Send + Sync>;

/// Measures, and records how long that took.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(crate) durations: Arc<Durations>,
    pub(crate) stat_file_system: StatFileSystem,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            durations: Arc::default(),
            stat_file_system: Arc::new(|path| Ok(rustix::fs::statfs(path)?)),
        }
    }
}

impl Meter {
    /// Measures a volume; `None` if it has no usage to measure. `server` is the name of the file
    /// system that it is on: what hangs, hangs together. `walk` is one through the volume.
    pub(crate) async fn volume(
        &self,
        source: UsageSource,
        server: &str,
        walk: &Walk,
    ) -> Result<Option<Measured>, MeasureError> {
        match source {
            UsageSource::None => Ok(None),
            UsageSource::Driver(volume) => self.driver(&*volume).await,
            UsageSource::FileSystem(path) => {
                let permit = permit(server).await;
                let begun = Instant::now();
                let [bytes, inodes] = self.file_system(path, &permit).await?;
                self.durations.record("statfs", begun);
                Ok(Some(measured(bytes, inodes)))
            }
            UsageSource::Directory(path) => {
                let _turn = WALKS.acquire(server).await;
                let begun = Instant::now();
                let used = directory::measure(path.clone(), server, walk, &Pace::default()).await?;
                self.durations.record("du", begun);
                let permit = permit(server).await;
                let [mut bytes, mut inodes] = self.file_system(path, &permit).await?;
                bytes.used = used.bytes;
                inodes.used = used.inodes;
                Ok(Some(measured(bytes, inodes)))
            }
            UsageSource::Device(path) => {
                let permit = permit(server).await;
                let begun = Instant::now();
                let device = path.clone();
                let size = blocking(&permit, move || file_system::device_size(&device));
                let size = size.await?;
                let total = size.map_err(|error| MeasureError::io("use device", &path, error))?;
                self.durations.record("block", begun);
                let bytes = Amounts {
                    total,
                    ..Amounts::default()
                };
                Ok(Some(measured(bytes, Amounts::default())))
            }
        }
    }

    async fn driver(&self, volume: &dyn DriverVolume) -> Result<Option<Measured>, MeasureError> {
        let begun = Instant::now();
        let usage = volume.usage().await;
        self.durations.record(volume.driver(), begun);
        Ok(usage?.map(|usage| Measured {
            condition: usage.condition,
            ..measured(usage.bytes, usage.inodes)
        }))
    }

    async fn file_system(
        &self,
        path: PathBuf,
        permit: &Arc<IoPermit>,
    ) -> Result<[Amounts; 2], MeasureError> {
        let (stat, at) = (Arc::clone(&self.stat_file_system), path.clone());
        let found = blocking(permit, move || stat(&at)).await?;
        let found = found.map_err(|error| {
            MeasureError::io("get the size of the file system at", &path, error)
        })?;
        Ok(file_system::amounts(&found))
    }

    /// Measures the logs and the hosts file of a pod with these containers.
    pub(crate) async fn files(
        &self,
        log_dir: PathBuf,
        etc_hosts: PathBuf,
        containers: Vec<String>,
        server: &str,
    ) -> Result<PodFiles, MeasureError> {
        let permit = permit(server).await;
        let measure = move || files::measure(&log_dir, &etc_hosts, &containers);
        blocking(&permit, measure).await?
    }
}

fn measured(bytes: Amounts, inodes: Amounts) -> Measured {
    Measured {
        at: clock::now(),
        bytes,
        inodes,
        condition: None,
    }
}
