//! Facts about this host.

use std::{fs, path::Path};

/// The host name.
pub(crate) fn name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Whether cgroup v2 is mounted at `/sys/fs/cgroup`.
pub(crate) fn is_cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The swap areas in use, from the contents of `/proc/swaps`.
fn swap_areas(text: &str) -> Vec<&str> {
    // The first line is a heading.
    let lines = text.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// The swap areas that this host uses. None with a kernel without swap support.
pub(crate) fn swap() -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swap_areas(&text).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_what_comes_after_the_heading() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert_eq!(swap_areas(""), [""; 0]);
        assert_eq!(swap_areas(heading), [""; 0]);
        let on = format!("{heading}/dev/sda2 partition\t8388604\t0\t-2\n");
        assert_eq!(swap_areas(&on), ["/dev/sda2"]);
    }
}
