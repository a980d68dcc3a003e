//! Metrics of this process, from `/proc`.

use std::{fs, io};

use kubelet_host::version;
use kubelet_metrics::Exposition;

/// Clock ticks per second in `/proc`, the same on every architecture that containers run on.
const TICKS: f64 = 100.0;

/// Measurements of the process.
#[derive(Debug, PartialEq)]
pub(super) struct Process {
    cpu_seconds: f64,
    start_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_files: usize,
    /// `None` if unlimited.
    max_files: Option<u64>,
}

impl Process {
    /// Reads the measurements. Blocks briefly.
    ///
    /// # Errors
    /// A file in `/proc` cannot be read or parsed.
    pub(super) fn read() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let status = fs::read_to_string("/proc/self/status")?;
        let limits = fs::read_to_string("/proc/self/limits")?;
        let host = fs::read_to_string("/proc/stat")?;
        let open_files = fs::read_dir("/proc/self/fd")?.count();
        Self::parse([&stat, &status, &limits, &host], open_files)
            .ok_or_else(|| io::Error::other("cannot parse the kernel's statistics of this process"))
    }

    fn parse([stat, status, limits, host]: [&str; 4], open_files: usize) -> Option<Self> {
        // The process name, in parentheses, may contain any character.
        let (_, stat) = stat.rsplit_once(')')?;
        let stat: Vec<&str> = stat.split_whitespace().collect();
        let ticks = |index: usize| stat.get(index)?.parse::<f64>().ok();
        let boot: f64 = after(host, "btime")?.trim().parse().ok()?;
        let kib = |name| {
            let value = after(status, name)?.split_whitespace().next()?;
            value.parse::<u64>().ok()?.checked_mul(1024)
        };
        let max_files = after(limits, "Max open files")?;
        Some(Self {
            cpu_seconds: (ticks(11)? + ticks(12)?) / TICKS,
            start_seconds: boot + ticks(19)? / TICKS,
            resident_bytes: kib("VmRSS:")?,
            virtual_bytes: kib("VmSize:")?,
            // The descriptor used for counting is closed by now.
            open_files: open_files.saturating_sub(1),
            max_files: max_files.split_whitespace().next()?.parse().ok(),
        })
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        let name = "process_cpu_seconds_total";
        page.family(
            name,
            "counter",
            "Total user and system CPU time spent in seconds.",
        );
        page.sample(name, &[], self.cpu_seconds, None);
        if let Some(max) = self.max_files {
            page.gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
                max,
            );
        }
        page.gauge(
            "process_open_fds",
            "Number of open file descriptors.",
            self.open_files,
        );
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            self.resident_bytes,
        );
        page.gauge(
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            self.virtual_bytes,
        );
        self.collect_start(page);
    }

    /// The start time, which `/metrics/probes` has too.
    pub(super) fn collect_start(&self, page: &mut Exposition) {
        page.gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            self.start_seconds,
        );
    }
}

/// The version of the kubelet.
pub(super) fn build_info(page: &mut Exposition) {
    let name = "kubernetes_build_info";
    page.family(
        name,
        "gauge",
        "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
    );
    let (major, minor) = version::MAJOR_MINOR.split_once('.').unwrap_or_default();
    let platform = format!("linux/{}", version::go_arch());
    let labels = [
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", version::VERSION),
        ("go_version", ""),
        ("major", major),
        ("minor", minor),
        ("platform", platform.as_str()),
    ];
    page.sample(name, &labels, 1, None);
}

/// The rest of the line that starts with `name`.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 123 45 0";
        let status = "Name:\ta\nVmSize:\t  2048 kB\nVmRSS:\t   1024 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        let host = "cpu 1 2 3\nbtime 1700000000\n";
        let process = Process::parse([stat, status, limits, host], 8).unwrap();
        let expected = Process {
            cpu_seconds: 3.0,
            start_seconds: 1_700_000_010.0,
            resident_bytes: 1 << 20,
            virtual_bytes: 2 << 20,
            open_files: 7,
            max_files: Some(1024),
        };
        assert_eq!(process, expected);
        assert_eq!(Process::parse(["", status, limits, host], 8), None);
    }

    #[test]
    fn this_process_is_there() {
        let process = Process::read().unwrap();
        assert!(process.resident_bytes > 0 && process.open_files > 0);
        assert!(process.start_seconds > 1_600_000_000.0);
    }

    #[test]
    fn the_build_is_told_with_all_labels() {
        let mut page = Exposition::default();
        build_info(&mut page);
        let text = page.into_text();
        assert!(text.contains("major=\"1\",minor=\"36\""), "{text}");
        assert!(text.contains(&format!("git_version=\"{}\"", version::VERSION)));
        assert!(text.ends_with(" 1\n"), "{text}");
    }
}
