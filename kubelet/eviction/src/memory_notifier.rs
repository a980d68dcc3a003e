//! Notifications of the kernel when memory becomes scarce (`kernelMemcgNotification`).
//!
//! With cgroup v1, the kernel counts crossings of a threshold of `memory.usage_in_bytes` in an event
//! file descriptor. With v2, it reports when tasks stall on memory (pressure stall information).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use cgroup_stats::Mounts;
use futures::future::select_all;
use kubelet_host::{readiness, repeatable};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::warn;

use crate::{host::MemoryMark, signal::Signal};

/// Tasks that stall on memory for a tenth of a second within one.
const STALLS: &str = "some 100000 1000000";

/// Registers for notifications of the kernel.
#[derive(Debug, Default)]
pub struct MemoryNotifier {
    /// The directory of all processes in the v1 hierarchy of memory.
    node: Option<PathBuf>,
    /// That of all pods.
    pods: Option<PathBuf>,
    /// The file of the node's pressure on memory, for v2.
    pressure: Option<PathBuf>,
    has_failed: AtomicBool,
}

impl MemoryNotifier {
    /// Finds the files of this machine in the procfs mounted at `proc`, and those of the cgroup
    /// `pods`; blocking.
    pub fn find(proc: &Path, pods: Option<&str>) -> Self {
        let mounts = Mounts::read(proc).unwrap_or_default();
        let directory = |cgroup: &str| {
            let cgroup = mounts.cgroup(Path::new(cgroup));
            cgroup.v1("memory").map(Path::to_owned)
        };
        let node = directory("/");
        Self {
            pods: pods.and_then(directory),
            pressure: node.is_none().then(|| proc.join("pressure/memory")),
            node,
            has_failed: AtomicBool::new(false),
        }
    }

    /// Waits for the first notification about one of the marks. Never returns if the kernel cannot
    /// notify.
    pub async fn crossed(&self, marks: &[MemoryMark]) {
        let mut registered = Vec::new();
        for mark in marks {
            match self.register(mark).await {
                Ok(registration) => registered.push(registration),
                Err(error) => {
                    let signal = mark.signal.as_str();
                    if !self.has_failed.swap(true, Ordering::Relaxed) {
                        warn!(
                            signal, %error,
                            "the kernel does not notify of scarce memory \
                             (kernelMemcgNotification); looking every ten seconds only"
                        );
                    }
                }
            }
        }
        if registered.is_empty() {
            return std::future::pending().await;
        }
        let waits = registered
            .iter()
            .map(|registration| Box::pin(registration.notified()));
        select_all(waits).await;
    }

    async fn register(&self, mark: &MemoryMark) -> io::Result<Registration> {
        let directory = match mark.signal {
            Signal::AllocatableMemoryAvailable => self.pods.clone(),
            _ => self.node.clone(),
        };
        let (pressure, working_set) = (self.pressure.clone(), mark.working_set);
        let open = repeatable::blocking(move || match (directory, pressure) {
            (Some(directory), _) => usage_event(&directory, working_set),
            (None, Some(pressure)) => stall_event(&pressure),
            (None, None) => Err(io::ErrorKind::Unsupported.into()),
        });
        let (file, interest) = open.await.map_err(io::Error::other)??;
        let file = readiness::watch(file, interest)?;
        Ok(Registration { file, interest })
    }
}

/// Ends with its file descriptor.
#[derive(Debug)]
struct Registration {
    file: AsyncFd<OwnedFd>,
    interest: Interest,
}

impl Registration {
    async fn notified(&self) {
        if self.file.ready(self.interest).await.is_err() {
            std::future::pending().await
        }
    }
}

/// An event when the usage of the cgroup crosses that at which its working set is `working_set`.
fn usage_event(directory: &Path, working_set: u64) -> io::Result<(OwnedFd, Interest)> {
    let stat = fs::read_to_string(directory.join("memory.stat"))?;
    let inactive = stat
        .lines()
        .find_map(|line| line.strip_prefix("total_inactive_file "));
    let inactive: u64 = inactive.and_then(|it| it.parse().ok()).unwrap_or_default();
    let usage = File::open(directory.join("memory.usage_in_bytes"))?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let control = directory.join("cgroup.event_control");
    let mut control = OpenOptions::new().write(true).open(control)?;
    let threshold = working_set.saturating_add(inactive);
    let (event_fd, usage_fd) = (event.as_raw_fd(), usage.as_raw_fd());
    control.write_all(format!("{event_fd} {usage_fd} {threshold}").as_bytes())?;
    Ok((event, Interest::READABLE))
}

/// An event when tasks stall on memory.
fn stall_event(pressure: &Path) -> io::Result<(OwnedFd, Interest)> {
    let mut file = OpenOptions::new().read(true).write(true).open(pressure)?;
    file.write_all(STALLS.as_bytes())?;
    Ok((file.into(), Interest::PRIORITY))
}
