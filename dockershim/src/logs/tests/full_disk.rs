//! Logs on a file system that is full for a while.

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use super::*;

/// A tmpfs at the directory of a container's log, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(world: &World, options: &std::ffi::CStr) -> Self {
        let path = Path::new(&world.container.status.log_path);
        let path = path.parent().unwrap().to_owned();
        fs::create_dir(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(path)
    }

    fn resize(&self, options: &std::ffi::CStr) {
        mount_remount(&self.0, MountFlags::empty(), options).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// Waits for `lines` lines, and for no more.
async fn await_lines(world: &World, lines: usize) {
    world.until("all lines", || world.lines() >= lines).await;
    let log = fs::read_to_string(&world.container.status.log_path).unwrap();
    assert!(
        log.lines()
            .all(|line| line == "2026-01-01T00:00:00Z stdout F text"),
        "a line is damaged: {log}"
    );
    assert_eq!(log.lines().count(), lines);
}

#[tokio::test]
async fn a_log_whose_disk_fills_gets_each_line_once_when_there_is_room() {
    let world = World::new();
    let disk = Disk::new(&world, c"size=8k");
    let logs = world.logs();
    logs.follow(&world.container);
    write(&world.container.engine_log, 500);
    let log = world.container.status.log_path.clone();
    let is_full = || fs::metadata(&log).is_ok_and(|log| log.len() == 8192);
    world.until("the disk is full", is_full).await;
    disk.resize(c"size=64k");
    await_lines(&world, 500).await;
    logs.close().await;
}

/// Without room for the file itself, no position is known before the first line.
#[tokio::test]
async fn a_log_that_begins_on_a_full_disk_gets_each_line_once_when_there_is_room() {
    let world = World::new();
    let disk = Disk::new(&world, c"size=8k,nr_inodes=1");
    let logs = world.logs();
    logs.follow(&world.container);
    write(&world.container.engine_log, 500);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let log = world.container.status.log_path.clone();
    assert!(!Path::new(&log).exists());
    disk.resize(c"size=8k,nr_inodes=10");
    let is_full = || fs::metadata(&log).is_ok_and(|log| log.len() == 8192);
    world.until("the disk is full again", is_full).await;
    disk.resize(c"size=64k");
    await_lines(&world, 500).await;
    logs.close().await;
}

#[test]
fn an_incomplete_first_line_is_removed_when_no_position_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(&path, "2026-01-01T00:00:00Z stdout F te").unwrap();
    let mut log = LogFile::open(&path).unwrap();
    assert_eq!(log.mend().unwrap(), None);
    log.append(b"2026-01-01T00:00:00Z stdout F text\n").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "2026-01-01T00:00:00Z stdout F text\n");
}
