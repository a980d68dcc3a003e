//! Pressure stall information: how long tasks have waited for a resource (`psi.rst`).

use cri_proto::runtime::v1::{PsiData, PsiStats};

use super::{cgroup::Cgroup, usage::Reader};

/// What can be under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Disks.
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

impl Reader {
    /// What waits for `resource`: `cpu`, `memory` or `io`. Only the v2 hierarchy tells,
    /// and only when the kernel measures it.
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

/// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`; the total is in microseconds there, and
/// in nanoseconds in CRI.
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
