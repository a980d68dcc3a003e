//! Pressure stall information: the time that tasks waited for a resource (`psi.rst`).

use cri_proto::runtime::v1::{PsiData, PsiStats};

use super::{cgroup::Cgroup, usage::KernelFileReader};

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

impl KernelFileReader {
    /// The pressure on `resource`. Available only in the v2 hierarchy, and only if the kernel
    /// measures it.
    pub fn pressure(&mut self, cgroup: &Cgroup, resource: Resource) -> Option<PsiStats> {
        let text = self.text(cgroup.unified()?, resource.file())?;
        let mut stats = PsiStats::default();
        for line in text.lines() {
            let Some((kind, values)) = line.split_once(' ') else {
                continue;
            };
            match kind {
                "some" => stats.some = Some(psi(values)),
                "full" => stats.full = Some(psi(values)),
                _ => {}
            }
        }
        (stats != PsiStats::default()).then_some(stats)
    }
}

/// Parses `avg10=0.00 avg60=0.00 avg300=0.00 total=0`. The total is in microseconds; CRI's is in
/// nanoseconds.
fn psi(values: &str) -> PsiData {
    let mut data = PsiData::default();
    for pair in values.split(' ') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let average = || value.parse().unwrap_or_default();
        match key {
            "avg10" => data.avg10 = average(),
            "avg60" => data.avg60 = average(),
            "avg300" => data.avg300 = average(),
            "total" => {
                let microseconds: u64 = value.parse().unwrap_or_default();
                data.total = microseconds.saturating_mul(1000);
            }
            _ => {}
        }
    }
    data
}
