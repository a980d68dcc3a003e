//! The driver's state of its volumes on the node, and the calls that no kubelet may make.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use cri_proto::csi::v1::NodeGetVolumeStatsResponse;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

/// The volumes that the driver knows.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    by_id: BTreeMap<String, Volume>,
    /// The directory of the volumes' data, if they have any.
    pub(super) data: Option<PathBuf>,
    /// The ids of volumes that do not exist in the storage.
    pub(super) deleted: BTreeSet<String>,
    /// The usage and the condition that the driver reports, by the volume's id.
    pub(super) stats: BTreeMap<String, NodeGetVolumeStatsResponse>,
    /// The calls that no kubelet may make.
    pub(super) wrongs: Vec<String>,
}

#[derive(Debug, Default)]
struct Volume {
    staged: BTreeSet<PathBuf>,
    published: BTreeSet<PathBuf>,
    /// The calls in progress.
    busy: Vec<Busy>,
}

#[derive(Debug)]
struct Busy {
    verb: &'static str,
    path: String,
    /// The call does not return to the kubelet.
    hangs: bool,
}

impl Volumes {
    /// Begins a call. If the driver is still busy with another call, returns that call's verb.
    /// Unpublish calls for different paths may run in parallel.
    pub(super) fn begin(
        &mut self,
        id: &str,
        verb: &'static str,
        path: &str,
    ) -> Result<(), &'static str> {
        let volume = self.of(id);
        let together =
            |other: &Busy| other.verb == "Unpublish" && verb == "Unpublish" && other.path != path;
        let Some(other) = volume.busy.iter().find(|other| !together(other)) else {
            volume.busy.push(Busy {
                verb,
                path: path.to_owned(),
                hangs: false,
            });
            return Ok(());
        };
        let Busy {
            verb: other, hangs, ..
        } = *other;
        if !hangs {
            self.wrongs.push(format!("{verb} of {id} beside {other}"));
        }
        Err(other)
    }

    pub(super) fn is_published(&self, id: &str, path: &Path) -> bool {
        let volume = self.by_id.get(id);
        volume.is_some_and(|volume| volume.published.contains(path))
    }

    /// Marks a call as hanging.
    pub(super) fn hang(&mut self, id: &str, verb: &str, path: &str) {
        let busy = self.of(id).busy.iter_mut();
        for busy in busy.filter(|busy| busy.verb == verb && busy.path == path) {
            busy.hangs = true;
        }
    }

    pub(super) fn end(&mut self, id: &str, verb: &str, path: &str) {
        let busy = &mut self.of(id).busy;
        busy.retain(|busy| busy.verb != verb || busy.path != path);
    }

    pub(super) fn stage(&mut self, id: &str, path: &Path, is_device: bool) -> io::Result<()> {
        let data = self.data.clone().filter(|_| !is_device);
        let volume = self.of(id);
        if !volume.staged.insert(path.to_owned()) {
            return Ok(());
        }
        match data {
            Some(data) => bind(&data.join(id), path),
            None => fs::write(path.join(super::STAGED), id),
        }
    }

    pub(super) fn unstage(&mut self, id: &str, path: &Path) -> io::Result<()> {
        let volume = self.of(id);
        if !volume.staged.contains(path) {
            return Ok(());
        }
        if !volume.published.is_empty() {
            let wrong = format!("Unstage of {id}, published at {:?}", volume.published);
            self.wrongs.push(wrong);
            return Err(io::Error::other("published"));
        }
        volume.staged.remove(path);
        match &self.data {
            Some(_) if !path.join(super::STAGED).exists() => unmount_at(path),
            _ => fs::remove_file(path.join(super::STAGED)),
        }
    }

    /// Publishes a volume from its staging path, if the driver stages.
    pub(super) fn publish(
        &mut self,
        id: &str,
        staging: &Path,
        path: &Path,
        is_device: bool,
    ) -> io::Result<()> {
        let data = self.data.clone().filter(|_| !is_device);
        let volume = self.of(id);
        if !staging.as_os_str().is_empty() && !volume.staged.contains(staging) {
            self.wrongs.push(format!("Publish of {id}, not staged"));
            return Err(io::Error::other("not staged"));
        }
        let is_new = volume.published.insert(path.to_owned());
        match data {
            _ if is_device => super::make_device(path),
            Some(_) if !is_new => Ok(()),
            Some(_) => bind(staging, path),
            None => {
                fs::create_dir_all(path)?;
                fs::write(path.join(super::PUBLISHED), id)
            }
        }
    }

    pub(super) fn unpublish(&mut self, id: &str, path: &Path) -> io::Result<()> {
        let volume = self.of(id);
        let was_published = volume.published.remove(path);
        match (&self.data, path.is_dir()) {
            (Some(_), true) => {
                if was_published {
                    unmount_at(path)?;
                }
                fs::remove_dir(path)
            }
            (None, true) => fs::remove_dir_all(path),
            (_, false) => fs::remove_file(path),
        }
    }

    /// Drops the state of a volume at a path.
    pub(super) fn forget(&mut self, id: &str, path: &Path) {
        let volume = self.of(id);
        volume.staged.remove(path);
        volume.published.remove(path);
    }

    /// Lists where volumes are staged or published, and the calls in progress.
    pub(super) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (id, volume) in &self.by_id {
            left.extend(volume.staged.iter().map(|at| format!("{id} staged {at:?}")));
            let published = volume.published.iter();
            left.extend(published.map(|at| format!("{id} published {at:?}")));
            left.extend(
                volume
                    .busy
                    .iter()
                    .map(|busy| format!("{id} in {}", busy.verb)),
            );
        }
        left
    }

    /// Unmounts all volumes, even those in use.
    pub(super) fn unmount(&self) {
        for volume in self.by_id.values() {
            for path in volume.published.iter().chain(&volume.staged) {
                let _ = unmount(path, UnmountFlags::DETACH);
            }
        }
    }

    fn of(&mut self, id: &str) -> &mut Volume {
        self.by_id.entry(id.to_owned()).or_default()
    }
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(from)?;
    fs::create_dir_all(to)?;
    Ok(mount_bind(from, to)?)
}

fn unmount_at(path: &Path) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::empty())?)
}
