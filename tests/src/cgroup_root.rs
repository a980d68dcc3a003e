//! A cgroup for the pods of one node, so that nodes on one machine do not share theirs.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

const MOUNTS: &str = "/sys/fs/cgroup";
/// Exists if systemd runs this machine.
const SYSTEMD: &str = "/run/systemd/system";
/// Attempts to remove it: processes that were killed may still be ending.
const ATTEMPTS: u32 = 100;

/// A cgroup. When it is dropped, what is left in it is killed, and it is removed.
///
/// Cgroups in it have the names of the cgroupfs driver, such as `kubepods/burstable`; they are also
/// found where the systemd driver creates them.
#[derive(Debug)]
pub struct CgroupRoot {
    name: String,
    /// The mount points of the hierarchies.
    hierarchies: BTreeSet<PathBuf>,
    is_v2: bool,
}

impl CgroupRoot {
    /// Creates the cgroup `name` in every hierarchy.
    pub fn create(name: &str) -> Result<Self> {
        let is_v2 = Path::new(MOUNTS).join("cgroup.controllers").exists();
        let root = Self {
            name: name.to_owned(),
            hierarchies: if is_v2 { unified()? } else { hierarchies()? },
            is_v2,
        };
        for hierarchy in &root.hierarchies {
            for directory in root.names("") {
                make(&hierarchy.join(directory), is_v2)?;
            }
        }
        Ok(root)
    }

    /// Its path in each hierarchy.
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Whether the machine has cgroup v2.
    pub const fn is_v2(&self) -> bool {
        self.is_v2
    }

    /// A file of a cgroup in it, from the hierarchy that has it.
    pub fn read(&self, cgroup: &str, file: &str) -> Result<String> {
        self.read_in(&self.directories(cgroup), file)
            .with_context(|| format!("no {file} in {}/{cgroup}", self.name))
    }

    /// A file of a container's cgroup, which the runtime names after the container's ID.
    pub fn read_of_container(&self, pod: &str, id: &str, file: &str) -> Result<String> {
        let mut found = Vec::new();
        for directory in self.directories(pod) {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().contains(id) {
                    found.push(entry.path());
                }
            }
        }
        self.read_in(&found, file)
            .with_context(|| format!("no {file} of container {id} in {}/{pod}", self.name))
    }

    fn read_in(&self, directories: &[PathBuf], file: &str) -> Option<String> {
        let mut paths = directories.iter().map(|directory| directory.join(file));
        let text = paths.find_map(|path| fs::read_to_string(path).ok())?;
        Some(text.trim().to_owned())
    }

    /// Whether a cgroup in it exists, in any hierarchy.
    pub fn has(&self, cgroup: &str) -> bool {
        !self.directories(cgroup).is_empty()
    }

    /// Creates a cgroup in it, as another program would, where the node has its pods.
    pub fn make(&self, cgroup: &str) -> Result<()> {
        for hierarchy in &self.hierarchies {
            for (pods, directory) in self.names("kubepods").iter().zip(self.names(cgroup)) {
                if hierarchy.join(pods).exists() {
                    make(&hierarchy.join(directory), self.is_v2)?;
                }
            }
        }
        Ok(())
    }

    /// Moves a process to a cgroup in it.
    pub fn add_process(&self, cgroup: &str, pid: u32) -> Result<()> {
        for directory in self.directories(cgroup) {
            let file = directory.join("cgroup.procs");
            fs::write(&file, pid.to_string()).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// The existing directories of a cgroup in it.
    fn directories(&self, cgroup: &str) -> Vec<PathBuf> {
        let names = self.names(cgroup);
        let all = self
            .hierarchies
            .iter()
            .flat_map(|hierarchy| names.iter().map(|name| hierarchy.join(name)));
        all.filter(|directory| directory.exists()).collect()
    }

    /// The directories of a cgroup in it below a mount point: by the cgroupfs driver, and by the
    /// systemd driver if there may be one.
    fn names(&self, cgroup: &str) -> Vec<PathBuf> {
        let mut names = vec![Path::new(&self.name).join(cgroup)];
        if self.is_v2 && Path::new(SYSTEMD).exists() {
            names.push(self.slice(cgroup));
        }
        names
    }

    fn slice(&self, cgroup: &str) -> PathBuf {
        let parts = cgroup.split('/').filter(|part| !part.is_empty());
        let mut slice = String::new();
        let mut path = PathBuf::new();
        for part in [self.name.as_str()].into_iter().chain(parts) {
            if !slice.is_empty() {
                slice.push('-');
            }
            slice.push_str(&part.replace('-', "_"));
            path.push(format!("{slice}.slice"));
        }
        path
    }
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        if self.is_v2 && Path::new(SYSTEMD).exists() {
            let slice = self.slice("");
            let _ = Command::new("systemctl").arg("stop").arg(slice).status();
        }
        for directory in self.directories("") {
            for _ in 0..ATTEMPTS {
                if remove(&directory).is_ok() {
                    break;
                }
                pause();
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "drop cannot wait otherwise")]
fn pause() {
    thread::sleep(Duration::from_millis(20));
}

/// The unified hierarchy, with its controllers available to new cgroups.
fn unified() -> Result<BTreeSet<PathBuf>> {
    let root = Path::new(MOUNTS);
    for controller in fs::read_to_string(root.join("cgroup.controllers"))?.split_whitespace() {
        // Controllers that the root cannot pass on are not needed.
        let _ = fs::write(
            root.join("cgroup.subtree_control"),
            format!("+{controller}"),
        );
    }
    Ok([root.to_owned()].into())
}

/// The mount points of the hierarchies of cgroup v1.
fn hierarchies() -> Result<BTreeSet<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after
            .starts_with("cgroup ")
            .then(|| PathBuf::from(before.split(' ').nth(4).unwrap_or_default()))
    });
    Ok(mounts.collect())
}

fn make(directory: &Path, is_v2: bool) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let Some(above) = directory.parent().filter(|_| !is_v2) else {
        return Ok(());
    };
    // A cpuset of cgroup v1 without CPUs takes no processes.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if above.join(file).exists() {
            fs::write(directory.join(file), fs::read(above.join(file))?)?;
        }
    }
    Ok(())
}

/// Kills what runs in a cgroup and those below it, and removes them.
fn remove(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    fs::remove_dir(directory)
}
