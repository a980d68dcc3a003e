//! Measures what the node, its pods and their containers use.
//!
//! The numbers come from the kernel: `/proc`, and the files of the cgroups that the kubelet created
//! for pods and that the runtime created in them. The runtime is asked only for what it alone
//! knows: the sizes of writable layers and images, and pods whose cgroups are not found, such as
//! those in virtual machines.
//!
//! Nothing runs between requests. Requests that follow each other share one [`NodeStats`].

#![forbid(unsafe_code)]

mod collector;
mod file_systems;
mod node;
mod processes;
mod provider;
mod runtime;
mod runtime_reports;
mod subjects;
mod ulimits;
mod usage;

pub use self::{
    file_systems::{FileSystem, ImageFileSystems, WritableLayer},
    provider::{StatsError, StatsProvider},
    subjects::{CgroupSubject, Depth, PodSubject, Subjects, SystemContainer},
    ulimits::SoftLimit,
    usage::{
        CgroupStats, ContainerStats, CpuUsage, Details, MemoryUsage, NodeStats, NodeUsage,
        PodStats, Tasks, Usage,
    },
};
