//! Whether the engine shares this process's `/proc`. A pid from an engine elsewhere refers to some
//! unrelated process here.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::Pid;

/// The result of the check at the last connect, kept while the engine is away.
#[derive(Debug, Clone, Default)]
pub struct EngineLocality(Arc<AtomicBool>);

impl EngineLocality {
    /// Whether the engine is local; false until it was reached once.
    pub fn is_local(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, is_local: bool) {
        self.0.store(is_local, Ordering::Relaxed);
    }
}

/// Checks whether the engine whose socket `peer` serves, and which reports `kernel` as its kernel
/// release, is local. The peer may be a tunnel to another machine, as with `ssh -L`, so the kernel
/// release must match too. An engine reached over TCP has no peer.
pub(super) async fn is_local(peer: Option<Pid>, kernel: Option<String>) -> bool {
    let judged = tokio::task::spawn_blocking(move || {
        let this = rustix::system::uname();
        peer.is_some_and(|peer| shares_processes(peer).unwrap_or_default())
            && kernel.is_none_or(|kernel| this.release().to_bytes() == kernel.as_bytes())
    });
    judged.await.unwrap_or_default()
}

/// Whether a process is in the same pid namespace as this one.
fn shares_processes(peer: Pid) -> io::Result<bool> {
    let namespace =
        |process: &str| -> io::Result<PathBuf> { fs::read_link(format!("/proc/{process}/ns/pid")) };
    Ok(namespace(&peer.as_raw_nonzero().to_string())? == namespace("self")?)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Kept(Child);

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[tokio::test]
    async fn a_peer_on_this_kernel_that_counts_processes_as_we_do_is_here() {
        let own = Some(rustix::process::getpid());
        let this = rustix::system::uname();
        let release = || Some(this.release().to_string_lossy().into_owned());
        assert!(is_local(own, release()).await);
        assert!(is_local(own, None).await);
        // Behind a tunnel; over TCP or in another namespace.
        assert!(!is_local(own, Some("5.10.0-other".into())).await);
        assert!(!is_local(None, release()).await);
    }

    #[tokio::test]
    async fn a_peer_that_counts_processes_on_its_own_is_not_here() {
        let own_count = [
            "--user",
            "--pid",
            "--fork",
            "--kill-child",
            "--",
            "sleep",
            "1000",
        ];
        let parent = Kept(Command::new("unshare").args(own_count).spawn().unwrap());
        let children = format!("/proc/{0}/task/{0}/children", parent.0.id());
        let child = loop {
            let found = fs::read_to_string(&children).unwrap();
            if let Some(pid) = found.split_whitespace().next() {
                break pid.parse().unwrap();
            }
            std::thread::yield_now();
        };
        assert!(!is_local(Pid::from_raw(child), None).await);
    }
}
