//! Volumes and files of known content.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::*;
use crate::usage::{FileUsage, PodFiles};

const PAGE: u64 = 4096;

/// A tmpfs, until it is dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(options: &std::ffi::CStr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        Self(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::empty()).unwrap();
    }
}

async fn usage_of(source: UsageSource) -> VolumeUsage {
    let it = Running::start();
    it.set(vec![pod("u", empty_dir("v"), &[("v", source)])]);
    in_time(it.measured("u", "v")).await
}

#[tokio::test]
async fn a_directory_takes_its_blocks_and_has_the_rest_of_the_file_system() {
    let tmpfs = Tmpfs::new(c"size=1m,nr_inodes=100");
    let dir = tmpfs.0.path().join("volume");
    let other = tmpfs.0.path().join("other");
    for path in [&dir.join("deep"), &other] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(other.join("big"), vec![1; 300_000]).unwrap();
    fs::write(dir.join("file"), vec![1; 10_000]).unwrap();
    fs::write(dir.join("deep/small"), "x").unwrap();
    fs::hard_link(dir.join("file"), dir.join("deep/again")).unwrap();
    symlink(&other, dir.join("link")).unwrap();
    // Sparse: what is not allocated does not count.
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();

    let usage = usage_of(directory(&dir)).await;
    // volume, deep, file, small, link, sparse.
    assert_eq!(usage.inodes.used, 6);
    assert_eq!(usage.bytes.used, 4 * PAGE);
    assert_eq!(usage.bytes.total, 1 << 20);
    let all = (4 + 300_000_u64.div_ceil(PAGE)) * PAGE;
    assert_eq!(usage.bytes.available, (1 << 20) - all);
    // With the root, other and big; tmpfs counts hard links too.
    assert_eq!(
        (usage.inodes.total, usage.inodes.available),
        (100, 100 - 10)
    );
    assert_eq!((usage.claim, usage.is_abnormal), (None, None));
    assert!(usage.is_local_ephemeral);
}

#[tokio::test]
async fn a_file_system_counts_as_a_whole() {
    let tmpfs = Tmpfs::new(c"size=64k,nr_inodes=10");
    let dir = tmpfs.0.path();
    fs::write(dir.join("file"), vec![1; 10_000]).unwrap();
    let deleted = fs::File::create(dir.join("deleted")).unwrap();
    deleted.set_len(1).unwrap();
    std::os::unix::fs::FileExt::write_at(&deleted, b"x", 0).unwrap();
    fs::remove_file(dir.join("deleted")).unwrap();

    let usage = usage_of(UsageSource::FileSystem(dir.to_owned())).await;
    assert_eq!(
        usage.bytes,
        Amounts {
            total: 64 << 10,
            available: (64 << 10) - 4 * PAGE,
            used: 4 * PAGE,
        }
    );
    assert_eq!(
        usage.inodes,
        Amounts {
            total: 10,
            available: 7,
            used: 3,
        }
    );
}

#[tokio::test]
async fn directories_deeper_than_a_path_is_long_count_in_full() {
    let dir = memory();
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let mode = rustix::fs::Mode::RWXU;
    let mut at = rustix::fs::open(dir.path(), flags, mode).unwrap();
    let name = "d".repeat(200);
    for _ in 0..100 {
        rustix::fs::mkdirat(&at, &name, mode).unwrap();
        at = rustix::fs::openat(&at, &name, flags, mode).unwrap();
    }
    let usage = usage_of(directory(dir.path())).await;
    assert_eq!((usage.inodes.used, usage.bytes.used), (101, 0));
    drop(at);
    tree_walk::remove_all(dir.path()).unwrap();
}

#[tokio::test]
async fn only_block_devices_have_a_size() {
    // Opening this one would wait for a writer.
    let dir = memory();
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let meter = Meter::default();
    let walk = Arc::<Walks>::default().begin(&Arc::default(), "v");
    for path in [&fifo, dir.path(), &dir.path().join("none")] {
        let source = UsageSource::Device(path.to_owned());
        in_time(meter.volume(source, "device", &walk))
            .await
            .unwrap_err();
    }
    let nodes = fs::read_dir("/sys/class/block").unwrap().flatten();
    let sized = nodes.filter_map(|entry| {
        let sectors = fs::read_to_string(entry.path().join("size")).ok()?;
        let bytes = sectors.trim().parse::<u64>().ok()? * 512;
        let device = Path::new("/dev").join(entry.file_name());
        (bytes > 0 && fs::File::open(&device).is_ok()).then_some((device, bytes))
    });
    let Some((device, bytes)) = sized.into_iter().next() else {
        test_run::skips::skip("only_block_devices_have_a_size", "there is no block device");
        return;
    };
    let link = dir.path().join("link");
    symlink(device, &link).unwrap();
    let usage = usage_of(UsageSource::Device(link)).await;
    let total = bytes;
    assert_eq!(
        (usage.bytes, usage.inodes),
        (
            Amounts {
                total,
                ..Amounts::default()
            },
            Amounts::default()
        )
    );
}

#[tokio::test]
async fn claims_are_those_of_the_spec() {
    let dir = memory();
    let spec = json!([
        {"name": "claimed", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "s"}},
    ]);
    let names = ["claimed", "own", "config", "memory", "secret"];
    let volumes = names.map(|name| (name, directory(dir.path())));
    let it = Running::start();
    it.set(vec![pod("u", spec, &volumes)]);
    let claim = |name: &str| {
        Some(crate::Claim {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        })
    };
    let expected = [
        (claim("data"), false),
        (claim("pod-u-own"), false),
        (None, true),
        (None, false),
        (None, false),
    ];
    for (name, expected) in names.into_iter().zip(expected) {
        let usage = in_time(it.measured("u", name)).await;
        assert_eq!((usage.claim, usage.is_local_ephemeral), expected, "{name}");
    }
}

#[tokio::test]
async fn logs_are_the_regular_files_of_the_containers_directories() {
    let dir = memory();
    let logs = dir.path().join("logs");
    fs::create_dir_all(logs.join("c/lost")).unwrap();
    fs::create_dir_all(logs.join("other")).unwrap();
    fs::write(logs.join("c/0.log"), vec![1; 5000]).unwrap();
    fs::write(logs.join("c/0.log.20260101-000000.gz"), "x").unwrap();
    fs::write(logs.join("c/lost/file"), "not counted").unwrap();
    fs::write(logs.join("other/file"), "not counted").unwrap();
    symlink("/etc/passwd", logs.join("c/1.log")).unwrap();
    fs::write(logs.join("pod.log"), "x").unwrap();
    let hosts = dir.path().join("etc-hosts");
    fs::write(&hosts, "x").unwrap();
    assert_eq!(fs::metadata(&hosts).unwrap().blocks() * 512, PAGE);

    let it = Running::start();
    let mut pod = pod("u", json!([]), &[]);
    (pod.log_dir, pod.etc_hosts) = (logs, hosts.clone());
    let bare = super::pod("w", json!([]), &[]);
    it.set(vec![pod, bare]);
    let files = |uid: &str| {
        let usages = it.analyzer.usages();
        let mut files = usages.get(&PodUid::from(uid))?.files.clone()?;
        files.at = jiff::Timestamp::default();
        Some(files)
    };
    let usage = |pages, inodes| FileUsage {
        bytes: pages * PAGE,
        inodes,
    };
    let mut expected = PodFiles {
        container_logs: [("c".to_owned(), usage(3, 2))].into(),
        pod_logs: usage(1, 1),
        etc_hosts: Some(usage(1, 1)),
        ..PodFiles::default()
    };
    in_time(async {
        assert_eq!(until(|| files("u")).await, expected);
        assert_eq!(until(|| files("w")).await, PodFiles::default());
        fs::remove_file(&hosts).unwrap();
        symlink("/etc/hosts", &hosts).unwrap();
        expected.etc_hosts = None;
        until(|| files("u").filter(|files| *files == expected)).await;
    })
    .await;
}
