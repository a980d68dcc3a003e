//! Reads the resource usage of cgroups, of either version, and of their processes from the files of
//! the kernel: `cgroup-v1/*.rst`, `cgroup-v2.rst`, `psi.rst`, `proc(5)`.
//!
//! Nothing is cached but what the caller keeps, and nothing runs between calls. All reads block. A
//! file that does not exist, or whose content is not understood, has no value.

#![forbid(unsafe_code)]

mod block_io;
mod cgroup;
mod cpu_rate;
mod descriptors;
mod device;
mod disk;
mod limits;
mod mounts;
mod network;
mod pressure;
mod process;
mod reader;
mod usage;

pub use self::{
    block_io::DeviceIo,
    cgroup::Cgroup,
    cpu_rate::CpuRates,
    descriptors::Descriptors,
    device::DeviceNames,
    disk::{DiskStats, disks},
    limits::{CpuLimits, MemoryLimits},
    mounts::Mounts,
    network::{Direction, Interface, interfaces},
    pressure::{Pressure, Resource, Stall},
    process::{Process, has_ended, is_cgroup_of},
    reader::{HeldFiles, KernelFileReader},
    usage::{CpuTimes, Memory, MemoryEvents, Swap, Tasks},
};
