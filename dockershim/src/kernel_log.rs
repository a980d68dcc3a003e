//! OOM kills from the kernel log (`/dev/kmsg`).

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

use cgroup_stats::SCOPE;

/// The longest record that the kernel returns.
const LONGEST_RECORD: usize = 8 * 1024;
/// How many records one call reads, so that a process that floods the log cannot block the shim.
const RECORDS: usize = 64 * 1024;
/// The start of the kernel's record of a kill, after the record's prefix, and the field with the
/// victim's cgroup. The victim's name, which any process can choose, comes after it.
const KILL: &str = "oom-kill:";
const CGROUP: &str = ",task_memcg=";
/// Priorities from this value on carry a user-space facility; the kernel enforces this.
const FIRST_FOREIGN_PRIORITY: u32 = 8;
/// The length of a Docker container id.
const ID_LENGTH: usize = 64;

/// The kernel log, read from its oldest record.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Opens the log.
    ///
    /// # Errors
    /// The process may not read the log, or it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        Ok(Self { file })
    }

    /// Reads the new records and calls `each` with the id of every container that lost a process to
    /// the OOM killer.
    ///
    /// # Errors
    /// The log cannot be read any further.
    pub fn read(&mut self, mut each: impl FnMut(&str)) -> io::Result<()> {
        let mut record = [0; LONGEST_RECORD];
        for _ in 0..RECORDS {
            let length = match self.file.read(&mut record) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => match Errno::from_io_error(&error) {
                    // Records were overwritten; the next read returns the oldest one left.
                    Some(Errno::PIPE | Errno::INTR) => continue,
                    _ => return Err(error),
                },
            };
            let text = String::from_utf8_lossy(&record[..length]);
            text.lines().filter_map(victim).for_each(&mut each);
        }
        Ok(())
    }
}

/// The container whose process was killed according to `record`.
fn victim(record: &str) -> Option<&str> {
    let (prefix, message) = record.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    if priority >= FIRST_FOREIGN_PRIORITY || !message.starts_with(KILL) {
        return None;
    }
    let (_, after) = message.split_once(CGROUP)?;
    let cgroup = after.split(',').next()?;
    cgroup.split('/').find_map(|name| {
        let name = name.strip_suffix(SCOPE).unwrap_or(name);
        let id = name.rsplit(['-', '_']).next()?;
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (id.len() == ID_LENGTH && id.bytes().all(hex)).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use proptest::prelude::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn record(prefix: &str, cgroup: &str) -> String {
        format!(
            "{prefix};oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={ID},\
             mems_allowed=0,oom_memcg=/kubepods,task_memcg={cgroup},task=tail,pid=7,uid=0"
        )
    }

    #[test]
    fn the_victim_is_the_container_whose_cgroup_the_record_names() {
        for cgroup in [
            format!("/docker/{ID}"),
            format!("/kubepods/burstable/podx/{ID}"),
            format!("/kubepods.slice/kubepods-podx.slice/docker-{ID}.scope"),
            format!("/docker/{ID}/init.scope"),
        ] {
            assert_eq!(victim(&record("6,145957,54154334015,-", &cgroup)), Some(ID));
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut log = KernelLog::open(&path).unwrap();
        let mut kernel = OpenOptions::new().write(true).open(&path).unwrap();
        let mut victims = Vec::new();
        for count in 0..2 {
            assert_eq!(victims.len(), count);
            let record = record("6,145957,54154334015,-", &format!("/docker/{ID}"));
            kernel.write_all(record.as_bytes()).unwrap();
            log.read(|id| victims.push(id.to_owned())).unwrap();
        }
        assert_eq!(victims, [ID, ID]);
        // An unreadable log is an error, not an empty log.
        let mut directory = KernelLog::open(dir.path()).unwrap();
        assert!(directory.read(|_| {}).is_err());
    }

    #[test]
    fn nobody_else_is_a_victim() {
        let docker = format!("/docker/{ID}");
        let named =
            record("6,1,2,-", "/user.slice").replace("task=tail", &format!("task={docker}"));
        for record in [
            // Written by a process.
            record("14,145957,54154334015,-", &docker),
            record("x", &docker),
            // Not a container's cgroup.
            record("6,1,2,-", "/user.slice"),
            record("6,1,2,-", &format!("/docker/{}", &ID[1..])),
            record("6,1,2,-", &format!("/docker/{}", ID.to_uppercase())),
            named,
            // Not the kernel's record of a kill.
            format!("6,1,2,-;docker0: {}", record("6,1,2,-", &docker)),
            format!("3,1,2,-;Memory cgroup out of memory: Killed process 7 ({ID})"),
            String::new(),
        ] {
            assert_eq!(victim(&record), None, "{record}");
        }
    }

    #[test]
    fn each_record_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        let lines = [
            record("6,1,2,-", &format!("/docker/{ID}")),
            " SUBSYSTEM=net".to_owned(),
            record("6,2,3,-", &format!("/docker/{}", ID.replace('0', "f"))),
        ];
        fs::write(&path, lines.join("\n")).unwrap();
        let mut log = KernelLog::open(&path).unwrap();
        let mut look = || {
            let mut ids = Vec::new();
            log.read(|id| ids.push(id.to_owned())).unwrap();
            ids
        };
        assert_eq!(look(), [ID.to_owned(), ID.replace('0', "f")]);
        assert_eq!(look(), [] as [String; 0]);
    }

    proptest! {
        #[test]
        fn any_record_is_read_without_panic(text in ".{0,20};oom-kill:.{0,20},task_memcg=.{0,80}") {
            let _ = victim(&text);
        }
    }
}
