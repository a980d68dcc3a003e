//! What a process uses, from `/proc`.

use std::fs;

use anyhow::{Context as _, Result};

/// Ticks per second of the times in `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

/// CPU seconds that a process has used.
pub fn cpu(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command, in parentheses, may hold spaces.
    let (_, after) = stat.rsplit_once(") ").context("no command")?;
    let fields: Vec<_> = after.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / TICKS)
}

/// Resident memory of a process in MiB.
pub fn rss(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: f64 = number.context("no VmRSS")?.parse()?;
    Ok(kib / 1024.0)
}
