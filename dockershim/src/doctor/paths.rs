//! Checks of directories, disk space and addresses.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use rustix::fs::{Access, access, statvfs};

use super::Check;

/// The percentage of free space below which the kubelet removes images by default.
const LITTLE_PERCENT: u64 = 15;
/// The free space, in bytes, below which no image can be pulled.
const NOTHING: u64 = 1 << 30;

/// Checks that the CRI socket can be created.
pub(super) fn socket_directory(socket: &Path) -> Check {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    writable(
        "CRI socket directory",
        "container-runtime-endpoint",
        directory,
    )
}

/// Checks that the shim can store its files.
pub(super) fn root_directory(path: &Path) -> Check {
    writable("root directory", "root-directory", path)
}

/// Checks that `path` is a writable directory or can be created.
fn writable(name: &'static str, flag: &str, path: &Path) -> Check {
    let there = path.ancestors().find(|ancestor| ancestor.exists());
    let there = there.unwrap_or(Path::new("/"));
    let shown = path.display();
    let remedy = format!("choose another --{flag}, or run the shim as root");
    if !there.is_dir() {
        let detail = format!("{shown}: {} is not a directory", there.display());
        return Check::fail(name, detail, remedy);
    }
    if let Err(error) = access(there, Access::WRITE_OK | Access::EXEC_OK) {
        let detail = format!("{shown}: cannot write to {}: {error}", there.display());
        return Check::fail(name, detail, remedy);
    }
    if there == path {
        Check::ok(name, format!("{shown} is writable"))
    } else {
        Check::ok(name, format!("{shown} can be created"))
    }
}

/// Checks that the shim can listen on `address`, the value of `flag`. If a shim may be running, the
/// address may be in use by it.
pub(super) fn address(
    name: &'static str,
    flag: &str,
    address: SocketAddr,
    shim_may_run: bool,
) -> Check {
    let remedy = format!("choose another --{flag}; port 0 selects a free port");
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(name, format!("{address} is available")),
        Err(error) if shim_may_run && error.kind() == io::ErrorKind::AddrInUse => {
            let detail = format!("{address} is in use, as expected if the running shim uses it");
            Check::ok(name, detail)
        }
        Err(error) => Check::fail(name, format!("{address}: {error}"), remedy),
    }
}

/// Checks that the engine has space for images and containers.
pub(super) fn engine_disk(root: &Path) -> Check {
    let name = "engine disk";
    match statvfs(root) {
        Ok(room) => {
            let blocks = DiskSpace {
                free: room.f_bavail.saturating_mul(room.f_frsize),
                all: room.f_blocks.saturating_mul(room.f_frsize),
            };
            let files = DiskSpace {
                free: room.f_favail,
                all: room.f_files,
            };
            judge_room(name, root, blocks, files)
        }
        Err(error) => Check::warn(
            name,
            format!("{}: {error}", root.display()),
            "run the doctor as root, on the engine's node",
        ),
    }
}

/// An amount of bytes or inodes.
#[derive(Clone, Copy)]
struct DiskSpace {
    free: u64,
    all: u64,
}

impl DiskSpace {
    /// The percentage that is free; 100 if the file system does not count.
    fn percent(self) -> u64 {
        (u128::from(self.free) * 100)
            .checked_div(u128::from(self.all))
            .map_or(100, |percent| u64::try_from(percent).unwrap_or(100))
    }
}

fn judge_room(name: &'static str, root: &Path, bytes: DiskSpace, files: DiskSpace) -> Check {
    let detail = format!(
        "{}: {} GiB ({} %) and {} % of its inodes are free",
        root.display(),
        bytes.free >> 30,
        bytes.percent(),
        files.percent()
    );
    let remedy = "free up space (docker system df, docker image prune), or move the engine's \
                  data-root to a larger disk";
    if bytes.free < NOTHING {
        Check::fail(name, detail, remedy)
    } else if bytes.percent() < LITTLE_PERCENT || files.percent() < LITTLE_PERCENT {
        Check::warn(name, detail, remedy)
    } else {
        Check::ok(name, detail)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::Verdict, *};

    #[test]
    fn a_directory_may_be_missing_but_not_a_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(root_directory(dir.path()).verdict, Verdict::Ok);
        let below = dir.path().join("a/b");
        assert_eq!(root_directory(&below).verdict, Verdict::Ok);
        assert!(!below.exists(), "the doctor made something");
        fs::write(dir.path().join("a"), "").unwrap();
        let found = root_directory(&below);
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.remedy.unwrap().contains("--root-directory"));
    }

    #[test]
    fn an_address_in_use_is_a_failure_unless_the_shim_runs() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let used = taken.local_addr().unwrap();
        let check = |may| address("metrics address", "metrics-bind-addr", used, may);
        assert_eq!(check(false).verdict, Verdict::Fail);
        assert!(check(false).remedy.unwrap().contains("--metrics-bind-addr"));
        assert_eq!(check(true).verdict, Verdict::Ok);
        drop(taken);
        assert_eq!(check(false).verdict, Verdict::Ok);
    }

    #[test]
    fn room_is_judged_in_bytes_and_files() {
        let gib = |free: u64| DiskSpace {
            free: free << 30,
            all: 100 << 30,
        };
        let files = |free| DiskSpace { free, all: 100 };
        let judge = |bytes, files| judge_room("engine disk", Path::new("/"), bytes, files).verdict;
        assert_eq!(judge(gib(50), files(50)), Verdict::Ok);
        assert_eq!(judge(gib(14), files(50)), Verdict::Warn);
        assert_eq!(judge(gib(50), files(1)), Verdict::Warn);
        assert_eq!(judge(gib(0), files(50)), Verdict::Fail);
        // btrfs does not count inodes.
        assert_eq!(judge(gib(50), DiskSpace { free: 0, all: 0 }), Verdict::Ok);
    }
}
