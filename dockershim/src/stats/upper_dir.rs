//! The upper directory of a running container's root overlay, from `proc_pid_mountinfo(5)`. An
//! engine with containerd's image store does not report it.

use std::{fs::File, io, path::PathBuf};

use crate::process::Processes;

/// The upper directory of the root file system of the Docker container `id`, whose first process is
/// `pid`. `None` if the process has exited, the pid belongs to another one, or the root is not an
/// overlay.
pub(super) fn find(processes: &Processes, id: &str, pid: i64) -> Option<PathBuf> {
    let process = processes.open(id, pid).ok()?;
    let table = File::from(process.open("mountinfo").ok()?);
    upper_dir_of_root(&io::read_to_string(table).ok()?)
}

fn upper_dir_of_root(table: &str) -> Option<PathBuf> {
    let root = table.lines().rev().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        (mount.split(' ').nth(4)? == "/").then_some(file_system)
    })?;
    let mut fields = root.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let upper = options
        .split(',')
        .find_map(|option| option.strip_prefix("upperdir="))?;
    // Special characters are escaped twice, by the overlay and by the table.
    (kind == "overlay" && upper.starts_with('/') && !upper.contains('\\'))
        .then(|| PathBuf::from(upper))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const ID: &str = "0123456789abcdef";
    const OVERLAY: &str = "\
        500 400 0:90 / / rw,relatime - overlay overlay rw,lowerdir=/s/1/fs:/s/2/fs,upperdir=/s/3/fs,workdir=/s/3/work,nouserxattr\n\
        501 500 0:91 / /proc rw - proc proc rw\n";

    #[test]
    fn the_root_of_a_process_of_the_container_is_found() {
        let proc = tempfile::tempdir().unwrap();
        let directory = proc.path().join("7");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("mountinfo"), OVERLAY).unwrap();
        fs::write(directory.join("cgroup"), format!("0::/docker/{ID}\n")).unwrap();
        let processes = Processes::in_procfs(proc.path());
        let found = find(&processes, ID, 7);
        assert_eq!(found.as_deref(), Some(Path::new("/s/3/fs")));
        assert_eq!(find(&processes, "fedcba9876543210", 7), None);
        assert_eq!(find(&processes, ID, 8), None);
    }

    #[test]
    fn only_an_overlay_has_one() {
        for table in [
            "500 400 254:0 / / rw - ext4 /dev/vda rw,upperdir=/x\n",
            "500 400 0:90 / / ro - overlay overlay ro,lowerdir=/s/1/fs:/s/2/fs\n",
            "500 400 0:90 / / rw - overlay overlay rw,upperdir=relative\n",
            "500 400 0:90 / / rw - overlay overlay rw,upperdir=/a\\134054b\n",
            "500 400 0:90 / /mnt rw - overlay overlay rw,upperdir=/x\n",
            "",
        ] {
            assert_eq!(upper_dir_of_root(table), None, "{table}");
        }
    }
}
