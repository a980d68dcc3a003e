//! Pressure stall information: the time that tasks waited for a resource (`psi.rst`).

use crate::{cgroup::Cgroup, reader::KernelFileReader};

/// A resource with pressure information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Disk I/O.
    Io,
}

impl Resource {
    fn file(self) -> &'static str {
        match self {
            Self::Cpu => "cpu.pressure",
            Self::Memory => "memory.pressure",
            Self::Io => "io.pressure",
        }
    }
}

/// The pressure on a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some tasks waited.
    pub some: Option<Stall>,
    /// All tasks that were not idle waited.
    pub full: Option<Stall>,
}

/// How long tasks waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// The share of the last 10 seconds, in percent.
    pub avg10: f64,
    /// The share of the last minute, in percent.
    pub avg60: f64,
    /// The share of the last 5 minutes, in percent.
    pub avg300: f64,
    /// Nanoseconds since the start.
    pub total: u64,
}

impl KernelFileReader {
    /// The pressure on `resource`. Available only in the v2 hierarchy, and only if the kernel
    /// measures it.
    pub fn pressure(&mut self, cgroup: &Cgroup, resource: Resource) -> Option<Pressure> {
        Pressure::parse(self.text(cgroup.unified()?, resource.file())?)
    }
}

impl Stall {
    fn is_over(&self) -> bool {
        [self.avg10, self.avg60, self.avg300] == [0.0; 3]
    }
}

impl Pressure {
    /// Whether no task waited for minutes.
    pub fn is_over(&self) -> bool {
        [self.some, self.full].iter().flatten().all(Stall::is_over)
    }

    /// Parses a pressure file; `None` if it has no values.
    pub fn parse(text: &str) -> Option<Self> {
        let mut pressure = Self::default();
        for line in text.lines() {
            let Some((kind, values)) = line.split_once(' ') else {
                continue;
            };
            match kind {
                "some" => pressure.some = Some(Stall::parse(values)),
                "full" => pressure.full = Some(Stall::parse(values)),
                _ => {}
            }
        }
        (pressure != Self::default()).then_some(pressure)
    }
}

impl Stall {
    /// Parses `avg10=0.00 avg60=0.00 avg300=0.00 total=0`, with the total in microseconds.
    fn parse(values: &str) -> Self {
        let mut stall = Self::default();
        for pair in values.split(' ') {
            let Some((key, value)) = pair.split_once('=') else {
                continue;
            };
            let average = || value.parse().unwrap_or_default();
            match key {
                "avg10" => stall.avg10 = average(),
                "avg60" => stall.avg60 = average(),
                "avg300" => stall.avg300 = average(),
                "total" => {
                    let microseconds: u64 = value.parse().unwrap_or_default();
                    stall.total = microseconds.saturating_mul(1000);
                }
                _ => {}
            }
        }
        stall
    }
}
