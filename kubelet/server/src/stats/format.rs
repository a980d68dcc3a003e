//! The JSON of `stats/v1alpha1`. What is not known is left out.

use cgroup_stats::{Interface, Pressure, Stall, Swap};
use jiff::Timestamp;
use kubelet_stats::{CpuUsage, FileSystem, MemoryUsage};
use serde::{Serialize, Serializer};

/// A time, written in whole seconds, the API's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(pub(super) Timestamp);

impl Time {
    pub(super) fn of(nanoseconds: i64) -> Self {
        Self(Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or_default())
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let seconds = Timestamp::from_second(self.0.as_second()).unwrap_or_default();
        serializer.collect_str(&seconds)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cpu {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    usage_core_nano_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

impl From<&CpuUsage> for Cpu {
    fn from(usage: &CpuUsage) -> Self {
        Self {
            time: Time::of(usage.at),
            usage_nano_cores: usage.nano_cores,
            usage_core_nano_seconds: usage.total,
            psi: usage.pressure.as_ref().map(Psi::from),
        }
    }
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Memory {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

impl From<&MemoryUsage> for Memory {
    fn from(usage: &MemoryUsage) -> Self {
        Self {
            time: Time::of(usage.at),
            available_bytes: usage.available,
            usage_bytes: usage.usage,
            working_set_bytes: usage.working_set,
            rss_bytes: usage.rss,
            page_faults: usage.page_faults,
            major_page_faults: usage.major_page_faults,
            psi: usage.pressure.as_ref().map(Psi::from),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SwapUsage {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_available_bytes: Option<u64>,
    swap_usage_bytes: u64,
}

impl SwapUsage {
    pub(super) const fn new(time: Time, swap: Swap) -> Self {
        Self {
            time,
            swap_available_bytes: swap.available,
            swap_usage_bytes: swap.usage,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Io {
    time: Time,
    psi: Psi,
}

impl Io {
    pub(super) fn new(time: Time, pressure: &Pressure) -> Self {
        Self {
            time,
            psi: pressure.into(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Psi {
    full: PsiData,
    some: PsiData,
}

/// The total is in nanoseconds.
#[derive(Debug, Default, Serialize)]
struct PsiData {
    total: u64,
    avg10: f64,
    avg60: f64,
    avg300: f64,
}

impl From<&Pressure> for Psi {
    fn from(pressure: &Pressure) -> Self {
        let data = |stall: Option<Stall>| {
            let stall = stall.unwrap_or_default();
            PsiData {
                total: stall.total,
                avg10: stall.avg10,
                avg60: stall.avg60,
                avg300: stall.avg300,
            }
        };
        Self {
            full: data(pressure.full),
            some: data(pressure.some),
        }
    }
}

/// The default interface, and all of them.
#[derive(Debug, Serialize)]
pub(super) struct Network {
    time: Time,
    #[serde(flatten)]
    default: Option<InterfaceUsage>,
    interfaces: Vec<InterfaceUsage>,
}

impl Network {
    pub(super) fn new(time: Time, all: &[Interface], default: Option<&str>) -> Self {
        let default = all.iter().find(|it| Some(it.name.as_str()) == default);
        Self {
            time,
            default: default.map(InterfaceUsage::from),
            interfaces: all.iter().map(InterfaceUsage::from).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InterfaceUsage {
    name: String,
    rx_bytes: u64,
    rx_errors: u64,
    tx_bytes: u64,
    tx_errors: u64,
}

impl From<&Interface> for InterfaceUsage {
    fn from(interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            rx_bytes: interface.receive.bytes,
            rx_errors: interface.receive.errors,
            tx_bytes: interface.transmit.bytes,
            tx_errors: interface.transmit.errors,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Fs {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

impl From<&FileSystem> for Fs {
    fn from(found: &FileSystem) -> Self {
        Self {
            time: Time(found.at),
            available_bytes: found.available,
            capacity_bytes: found.capacity,
            used_bytes: found.used,
            inodes_free: found.inodes_free,
            inodes: found.inodes,
            inodes_used: found.inodes_used,
        }
    }
}

impl Fs {
    /// A part of a file system that uses this much of it.
    pub(super) fn part(whole: &FileSystem, time: Time, used: Used) -> Self {
        Self {
            time,
            used_bytes: used.bytes,
            inodes_used: used.inodes,
            ..Self::from(whole)
        }
    }
}

/// What a directory uses of its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) bytes: Option<u64>,
    pub(super) inodes: Option<u64>,
}

impl Used {
    /// Adds what is known.
    pub(super) fn add(&mut self, other: Self) {
        let sum =
            |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).reduce(u64::saturating_add);
        self.bytes = sum(self.bytes, other.bytes);
        self.inodes = sum(self.inodes, other.inodes);
    }
}
