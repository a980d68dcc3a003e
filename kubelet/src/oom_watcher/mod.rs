//! OOM kills from the kernel's log: a node that is out of memory gets an event, and containers whose
//! processes were killed have the reason `OOMKilled`, whether or not the runtime noticed.
//!
//! The kernel logs a kill before it sends the signal, so a log that is read after a container has
//! ended contains the kill. Kills are missed if the kernel does not log them in full (it does so for
//! ten in five seconds), or overwrites them while no kubelet runs. Then the runtime's reason counts.

#[cfg(test)]
mod tests;
mod victims;

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use kernel_log::{KernelLog, OomKill, Progress};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_host::{readiness, repeatable};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::victims::Victims;

/// Reads the kernel's log.
#[derive(Debug)]
pub(crate) struct OomWatcher {
    path: Option<PathBuf>,
    events: EventRecorder,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// None while it is not read: not yet, or because it is not readable.
    log: Option<KernelLog>,
    victims: Victims,
}

/// Why the log is not read any further.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it has an end, so it is not the kernel's")]
    Ended,
}

impl OomWatcher {
    /// A watcher of the log at `path`; without one, there are no kills.
    pub(crate) fn new(path: Option<PathBuf>, events: EventRecorder) -> Self {
        Self {
            path,
            events,
            state: Mutex::default(),
        }
    }

    /// Opens the log. Kills before this call count for containers, but not for the node: an earlier
    /// kubelet may have reported them.
    pub(crate) async fn start(&self) {
        let Some(path) = self.path.clone() else {
            return;
        };
        let open = repeatable::blocking(move || open(&path)).await;
        let Ok(opened) = open.inspect_err(|error| warn!(%error, "opening the kernel log panicked"))
        else {
            return;
        };
        match opened {
            Ok((log, victims)) => {
                let log = Some(log);
                *self.state.lock() = State { log, victims };
            }
            Err(error) => self.give_up(&error.into()),
        }
    }

    /// Reports OOM kills of the node as they happen, until cancelled.
    pub(crate) async fn run(&self, cancel: CancellationToken) {
        if let Some(Err(error)) = cancel.run_until_cancelled(self.watch()).await {
            self.give_up(&error);
        }
    }

    async fn watch(&self) -> Result<(), LogError> {
        let Some(descriptor) = self.descriptor()? else {
            return Ok(());
        };
        let log = readiness::watch(descriptor, Interest::READABLE)?;
        loop {
            let mut readable = log.readable().await?;
            match self.read()? {
                Progress::Drained => readable.clear_ready(),
                Progress::Pending => tokio::task::yield_now().await,
                Progress::Ended => return Err(LogError::Ended),
            }
        }
    }

    fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let state = self.state.lock();
        let log = state.log.as_ref();
        log.map(|log| log.as_fd().try_clone_to_owned()).transpose()
    }

    /// Whether a process of the container was killed in its run from `started_at` on, which has
    /// ended. Reads the log first, without waiting.
    pub(crate) fn has_killed(&self, container_id: &str, started_at: i64) -> bool {
        if let Err(error) = self.read() {
            self.give_up(&error.into());
        }
        self.state.lock().victims.has(container_id, started_at)
    }

    fn read(&self) -> io::Result<Progress> {
        let State { log, victims } = &mut *self.state.lock();
        let Some(log) = log else {
            return Ok(Progress::Drained);
        };
        log.read(|kill| match kill {
            OomKill::Container(id) => victims.add(id),
            OomKill::Node { process, pid } => self.report(process, pid),
        })
    }

    fn report(&self, process: &str, pid: u32) {
        warn!(process, pid, "the node is out of memory");
        let mut message = "System OOM encountered".to_owned();
        if !process.is_empty() {
            message.push_str(&format!(", victim process: {process}, pid: {pid}"));
        }
        self.events
            .warning(Subject::Node, reason::SYSTEM_OOM, message);
    }

    fn give_up(&self, error: &LogError) {
        self.state.lock().log = None;
        warn!(
            path = %self.path.as_deref().unwrap_or(Path::new("")).display(),
            %error,
            "cannot read the kernel log; OOM kills that the runtime misses are not reported"
        );
    }
}

/// Opens the log at its end. Also returns the victims before.
fn open(path: &Path) -> io::Result<(KernelLog, Victims)> {
    let log = KernelLog::open_at_end(path)?;
    let mut victims = Victims::default();
    KernelLog::open(path)?.read(|kill| {
        if let OomKill::Container(id) = kill {
            victims.add(id);
        }
    })?;
    Ok((log, victims))
}
