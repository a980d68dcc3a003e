//! Cleanup after containerd, whose containers and mounts outlive it.

use std::time::Duration;

use rustix::process::Signal;
use test_run::process::{park, signal};

/// The deadline for killed containers to end.
const CONTAINERS_END: Duration = Duration::from_secs(10);

/// Whether containerd is running and notices that its containers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Containerd {
    /// containerd ends the shims of containers that have ended.
    Sees,
    /// Nothing ends the shims.
    IsGone,
}

/// Kills the containers of the shims that have `word` among their arguments, and waits until the
/// shims have ended.
pub(crate) fn kill_containers(word: &str, containerd: Containerd) {
    let deadline = std::time::Instant::now() + CONTAINERS_END;
    loop {
        let processes = processes_and_parents();
        let shims: Vec<u32> = processes
            .iter()
            .map(|(pid, _)| *pid)
            .filter(|pid| is_shim_of(*pid, word))
            .collect();
        if shims.is_empty() {
            return;
        }
        let late = std::time::Instant::now() > deadline;
        let shims_too = late || containerd == Containerd::IsGone;
        for (pid, parent) in processes {
            if shims.contains(&parent) || shims_too && shims.contains(&pid) {
                // The process may have ended by itself.
                let _ = signal(pid, Signal::KILL);
            }
        }
        if late {
            return;
        }
        park(Duration::from_millis(20));
    }
}

/// Whether a process is a containerd shim with this word in its command line.
fn is_shim_of(pid: u32, word: &str) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    let program = String::from_utf8_lossy(words.next().unwrap_or_default());
    program.contains("containerd-shim") && words.any(|w| w == word.as_bytes())
}

/// Every process id with its parent's.
pub(crate) fn processes_and_parents() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The command name, in parentheses, may contain any character.
            let (_, after) = stat.rsplit_once(") ")?;
            let parent = after.split(' ').nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}
