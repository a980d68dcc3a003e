//! Open file descriptors of processes: `proc_pid_fd(5)`.

use std::os::fd::OwnedFd;

use rustix::fs::{Dir, readlinkat};

/// The kernel's prefix for a socket, followed by its inode.
const SOCKET: &[u8] = b"socket:";

/// The most processes and descriptors that are counted. A container may have any number of them.
const MOST: u64 = 32 * 1024;

/// The number of open file descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// All descriptors.
    pub all: u64,
    /// Sockets.
    pub sockets: u64,
}

impl Descriptors {
    /// The total for processes, each by its opened directory `/proc/<pid>/fd`. Exited ones are
    /// skipped; `None` if no process can be examined, and if there is too much to count.
    pub fn total(processes: impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let mut left = MOST;
        let mut total: Option<Self> = None;
        for opened in processes {
            left = left.checked_sub(1)?;
            let Some(one) = Self::of(&opened, &mut left) else {
                continue;
            };
            let sum = total.get_or_insert_default();
            sum.all += one.all;
            sum.sockets += one.sockets;
        }
        total.filter(|_| left > 0)
    }

    /// The descriptors of a process, up to `left`, which is reduced by their number.
    fn of(opened: &OwnedFd, left: &mut u64) -> Option<Self> {
        let mut directory = Dir::read_from(opened).ok()?;
        let (mut found, mut target) = (Self::default(), Vec::new());
        while *left > 0
            && let Some(Ok(entry)) = directory.read()
        {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            found.all += 1;
            *left -= 1;
            // A descriptor closed meanwhile has no type.
            if let Ok(link) = readlinkat(opened, name, target) {
                found.sockets += u64::from(link.to_bytes().starts_with(SOCKET));
                target = link.into_bytes();
            } else {
                target = Vec::new();
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::symlink,
        path::Path,
    };

    use super::*;

    #[test]
    fn sockets_are_told_from_the_rest() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, targets) in [
            (7, &["/dev/null", "socket:[1]", "pipe:[2]"][..]),
            (8, &["socket:[3]", "anon_inode:[eventpoll]", "socket:[4]"]),
        ] {
            let directory = proc.path().join(format!("{pid}/fd"));
            fs::create_dir_all(&directory).unwrap();
            for (number, target) in targets.iter().enumerate() {
                symlink(target, directory.join(number.to_string())).unwrap();
            }
        }
        // The last process has exited meanwhile.
        let count = |pids: &[i64]| {
            let paths = pids.iter().map(|pid| proc.path().join(format!("{pid}/fd")));
            Descriptors::total(paths.filter_map(|path| File::open(path).ok().map(OwnedFd::from)))
        };
        let found = count(&[7, 8, 9]);
        assert_eq!(found, Some(Descriptors { all: 6, sockets: 3 }));
        assert_eq!(count(&[9]), None);
    }

    #[test]
    fn what_is_too_much_is_not_counted() {
        let directory = tempfile::tempdir().unwrap();
        let opened = |count: u64| (0..count).map(|_| File::open(directory.path()).unwrap().into());
        assert_eq!(
            Descriptors::total(opened(MOST - 1)),
            Some(Descriptors::default())
        );
        assert_eq!(Descriptors::total(opened(MOST + 1)), None);
        let mut left = 3;
        for number in 0..5 {
            symlink("/dev/null", directory.path().join(number.to_string())).unwrap();
        }
        let own = File::open(directory.path()).unwrap().into();
        assert_eq!(Descriptors::of(&own, &mut left).unwrap().all, 3);
        assert_eq!(left, 0);
    }

    #[test]
    fn an_open_socket_of_a_real_process_counts() {
        let own = || File::open(Path::new("/proc/self/fd")).unwrap().into();
        let sockets = || Descriptors::total([own()].into_iter()).unwrap().sockets;
        let opened: Vec<_> = (0..64)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        assert!(sockets() >= opened.len() as u64);
    }
}
