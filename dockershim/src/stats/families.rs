//! The metrics of `ListPodSandboxMetrics`, with cAdvisor's names and labels. Times are in whole
//! seconds, as CRI supports only integers.

use cri_proto::runtime::v1::{MetricDescriptor, MetricType};

/// The labels of every metric.
const BASE: [&str; BASE_LABELS] = ["id", "name", "image", "container", "pod", "namespace"];
/// The number of base labels.
pub const BASE_LABELS: usize = 6;

/// The metrics with one name, with `N` labels in addition to the base labels.
#[derive(Debug)]
pub struct Family<const N: usize> {
    /// The name.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: MetricType,
    help: &'static str,
    labels: [&'static str; N],
}

impl<const N: usize> Family<N> {
    const fn counter(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        Self {
            name,
            kind: MetricType::Counter,
            help,
            labels,
        }
    }

    const fn gauge(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        Self {
            name,
            kind: MetricType::Gauge,
            help,
            labels,
        }
    }

    fn descriptor(&self) -> MetricDescriptor {
        let labels = BASE.iter().chain(&self.labels);
        MetricDescriptor {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            label_keys: labels.map(|&label| label.to_owned()).collect(),
        }
    }
}

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: &Family<{ <[&str]>::len(&[$($label),*]) }> =
                &Family::$kind($name, [$($label),*], $help);
        )*

        /// The descriptors of all families.
        pub fn descriptors() -> Vec<MetricDescriptor> {
            vec![$($constant.descriptor()),*]
        }
    };
}

families! {
    CPU_USAGE: counter "container_cpu_usage_seconds_total" ["cpu"]
        "CPU time used so far, in seconds.";
    CPU_USER: counter "container_cpu_user_seconds_total" []
        "CPU time used in user mode so far, in seconds.";
    CPU_SYSTEM: counter "container_cpu_system_seconds_total" []
        "CPU time used in the kernel so far, in seconds.";
    CPU_PERIODS: counter "container_cpu_cfs_periods_total" []
        "Elapsed CPU quota periods.";
    CPU_THROTTLED_PERIODS: counter "container_cpu_cfs_throttled_periods_total" []
        "CPU quota periods in which the container was throttled.";
    CPU_THROTTLED: counter "container_cpu_cfs_throttled_seconds_total" []
        "Time for which the CPU quota throttled the container, in seconds.";

    MEMORY_USAGE: gauge "container_memory_usage_bytes" []
        "Memory in use with all page cache, in bytes.";
    MEMORY_WORKING_SET: gauge "container_memory_working_set_bytes" []
        "Memory in use without the inactive page cache, in bytes.";
    MEMORY_RSS: gauge "container_memory_rss" []
        "Anonymous memory, in bytes.";
    MEMORY_CACHE: gauge "container_memory_cache" []
        "Page cache, in bytes.";
    MEMORY_MAPPED_FILE: gauge "container_memory_mapped_file" []
        "Mapped files, in bytes.";
    MEMORY_SWAP: gauge "container_memory_swap" []
        "Swap in use, in bytes.";
    MEMORY_KERNEL: gauge "container_memory_kernel_usage" []
        "Kernel memory, in bytes.";
    MEMORY_MAX_USAGE: gauge "container_memory_max_usage_bytes" []
        "Maximum memory in use so far, in bytes.";
    MEMORY_FAILCNT: counter "container_memory_failcnt" []
        "How often the memory limit was hit.";
    MEMORY_ACTIVE_FILE: gauge "container_memory_total_active_file_bytes" []
        "Active page cache, in bytes.";
    MEMORY_INACTIVE_FILE: gauge "container_memory_total_inactive_file_bytes" []
        "Inactive page cache, in bytes.";
    MEMORY_FAILURES: counter "container_memory_failures_total" ["failure_type", "scope"]
        "Page faults so far.";
    OOM_EVENTS: counter "container_oom_events_total" []
        "Processes killed for lack of memory.";

    RECEIVE_BYTES: counter "container_network_receive_bytes_total" ["interface"]
        "Bytes received so far.";
    RECEIVE_PACKETS: counter "container_network_receive_packets_total" ["interface"]
        "Packets received so far.";
    RECEIVE_DROPPED: counter "container_network_receive_packets_dropped_total" ["interface"]
        "Packets dropped so far while receiving.";
    RECEIVE_ERRORS: counter "container_network_receive_errors_total" ["interface"]
        "Errors so far while receiving.";
    TRANSMIT_BYTES: counter "container_network_transmit_bytes_total" ["interface"]
        "Bytes sent so far.";
    TRANSMIT_PACKETS: counter "container_network_transmit_packets_total" ["interface"]
        "Packets sent so far.";
    TRANSMIT_DROPPED: counter "container_network_transmit_packets_dropped_total" ["interface"]
        "Packets dropped so far while sending.";
    TRANSMIT_ERRORS: counter "container_network_transmit_errors_total" ["interface"]
        "Errors so far while sending.";

    FS_USAGE: gauge "container_fs_usage_bytes" ["device"]
        "What the container has written to its root file system, in bytes.";
    FS_LIMIT: gauge "container_fs_limit_bytes" ["device"]
        "The size of the file system that the container writes to, in bytes.";
    FS_INODES: gauge "container_fs_inodes_total" ["device"]
        "Inodes of the file system that the container writes to.";
    FS_INODES_FREE: gauge "container_fs_inodes_free" ["device"]
        "Free inodes of the file system that the container writes to.";
    FS_READ_BYTES: counter "container_fs_reads_bytes_total" ["device"]
        "Bytes read so far.";
    FS_READS: counter "container_fs_reads_total" ["device"]
        "Reads so far.";
    FS_WRITE_BYTES: counter "container_fs_writes_bytes_total" ["device"]
        "Bytes written so far.";
    FS_WRITES: counter "container_fs_writes_total" ["device"]
        "Writes so far.";
    BLKIO_USAGE: counter "container_blkio_device_usage_total"
        ["device", "major", "minor", "operation"]
        "Bytes read or written so far.";

    PROCESSES: gauge "container_processes" []
        "Processes of the container.";
    THREADS: gauge "container_threads" []
        "Threads of the container.";
    THREADS_MAX: gauge "container_threads_max" []
        "Maximum number of threads in the container; 0 means no limit.";
    FILE_DESCRIPTORS: gauge "container_file_descriptors" []
        "Open file descriptors of the container's processes.";
    SOCKETS: gauge "container_sockets" []
        "Open file descriptors of the container's processes that are sockets.";
    LAST_SEEN: gauge "container_last_seen" []
        "When the container was last seen, as Unix time in seconds.";
    START_TIME: gauge "container_start_time_seconds" []
        "When the container was started, as Unix time in seconds.";

    SPEC_CPU_PERIOD: gauge "container_spec_cpu_period" []
        "The period of the CPU quota, in microseconds.";
    SPEC_CPU_QUOTA: gauge "container_spec_cpu_quota" []
        "The CPU quota, in microseconds per period.";
    SPEC_CPU_SHARES: gauge "container_spec_cpu_shares" []
        "The CPU shares.";
    SPEC_MEMORY_LIMIT: gauge "container_spec_memory_limit_bytes" []
        "The memory limit, in bytes; 0 means no limit.";
    SPEC_SWAP_LIMIT: gauge "container_spec_memory_swap_limit_bytes" []
        "The limit of memory and swap together, in bytes; 0 means no limit.";

    PRESSURE_CPU_WAITING: counter "container_pressure_cpu_waiting_seconds_total" []
        "How long some tasks of the container have waited for CPU time, in seconds.";
    PRESSURE_CPU_STALLED: counter "container_pressure_cpu_stalled_seconds_total" []
        "How long all tasks of the container have waited for CPU time, in seconds.";
    PRESSURE_MEMORY_WAITING: counter "container_pressure_memory_waiting_seconds_total" []
        "How long some tasks of the container have waited for memory, in seconds.";
    PRESSURE_MEMORY_STALLED: counter "container_pressure_memory_stalled_seconds_total" []
        "How long all tasks of the container have waited for memory, in seconds.";
    PRESSURE_IO_WAITING: counter "container_pressure_io_waiting_seconds_total" []
        "How long some tasks of the container have waited for disks, in seconds.";
    PRESSURE_IO_STALLED: counter "container_pressure_io_stalled_seconds_total" []
        "How long all tasks of the container have waited for disks, in seconds.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_labels_begin_alike() {
        let all = descriptors();
        let names: HashSet<_> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for descriptor in &all {
            assert_eq!(descriptor.label_keys[..BASE_LABELS], BASE);
            assert!(descriptor.name.starts_with("container_"));
        }
        assert_eq!(CPU_USAGE.descriptor().label_keys[BASE_LABELS..], ["cpu"]);
    }
}
