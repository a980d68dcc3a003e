//! The metrics' names, help texts and values.

use cgroup_stats::{Direction, Pressure};
use kubelet_metrics::Exposition;
use kubelet_stats::{CpuUsage, Details, SoftLimit, Usage};

use super::{
    page::{Page, START_TIME, Value, details},
    rows::Row,
};

pub(super) const COUNTER: &str = "counter";
pub(super) const GAUGE: &str = "gauge";

/// Writes all metrics that have values.
pub(super) fn write(rows: &[Row<'_>], page: &mut Exposition) {
    let mut page = Page { rows, page };
    page.times();
    page.cpu();
    page.memory();
    page.tasks();
    page.disk_io();
    page.file_systems();
    page.network();
    page.pressures();
    page.limits();
}

impl Page<'_> {
    fn times(&mut self) {
        let names = (
            "container_last_seen",
            GAUGE,
            "Last time a container was seen by the exporter",
        );
        self.single(names, |row| {
            let seconds = u64::try_from(row.at).ok()? / 1_000_000_000;
            (seconds > 0).then_some(Value::Integer(seconds))
        });
        let names = (
            START_TIME,
            GAUGE,
            "Start time of the container since unix epoch in seconds.",
        );
        self.single(names, |row| {
            let seconds = u64::try_from(row.started_at).ok()? / 1_000_000_000;
            (seconds > 0).then_some(Value::Integer(seconds))
        });
    }

    fn cpu(&mut self) {
        let names = (
            "container_cpu_usage_seconds_total",
            COUNTER,
            "Cumulative cpu time consumed in seconds.",
        );
        self.family(names, |row, family| {
            if let Some(CpuUsage { total, .. }) = row.usage.and_then(|usage| usage.cpu) {
                family.add(row, &[("cpu", "total")], Value::Nanoseconds(total));
            }
        });
        let names = (
            "container_cpu_user_seconds_total",
            COUNTER,
            "Cumulative user cpu time consumed in seconds.",
        );
        self.of_cpu(names, |it| Some(Value::Nanoseconds(it.cpu_times.user)));
        let names = (
            "container_cpu_system_seconds_total",
            COUNTER,
            "Cumulative system cpu time consumed in seconds.",
        );
        self.of_cpu(names, |it| Some(Value::Nanoseconds(it.cpu_times.system)));
        // As cAdvisor, only for cgroups with a quota.
        let throttled = |it: &Details| it.cpu_limits.and_then(|limits| limits.quota).is_some();
        let names = (
            "container_cpu_cfs_periods_total",
            COUNTER,
            "Number of elapsed enforcement period intervals.",
        );
        self.of_cpu(names, |it| {
            throttled(it).then_some(Value::Integer(it.cpu_times.periods))
        });
        let names = (
            "container_cpu_cfs_throttled_periods_total",
            COUNTER,
            "Number of throttled period intervals.",
        );
        self.of_cpu(names, |it| {
            throttled(it).then_some(Value::Integer(it.cpu_times.throttled_periods))
        });
        let names = (
            "container_cpu_cfs_throttled_seconds_total",
            COUNTER,
            "Total time duration the container has been throttled.",
        );
        self.of_cpu(names, |it| {
            throttled(it).then_some(Value::Nanoseconds(it.cpu_times.throttled))
        });
    }

    fn memory(&mut self) {
        let names = (
            "container_memory_usage_bytes",
            GAUGE,
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
        );
        self.of_memory(names, |memory, _| memory.usage);
        let names = (
            "container_memory_working_set_bytes",
            GAUGE,
            "Current working set in bytes.",
        );
        self.of_memory(names, |memory, _| memory.working_set);
        let names = ("container_memory_rss", GAUGE, "Size of RSS in bytes.");
        self.of_memory(names, |memory, _| memory.rss);
        let names = (
            "container_memory_swap",
            GAUGE,
            "Container swap usage in bytes.",
        );
        self.of_memory(names, |_, usage| Some(usage.swap?.usage));
        let names = (
            "container_memory_cache",
            GAUGE,
            "Number of bytes of page cache memory.",
        );
        self.of_memory(names, |_, usage| Some(usage.details.as_ref()?.memory.cache));
        let names = (
            "container_memory_mapped_file",
            GAUGE,
            "Size of memory mapped files in bytes.",
        );
        self.of_memory(names, |_, usage| {
            Some(usage.details.as_ref()?.memory.mapped_file)
        });
        let names = (
            "container_memory_total_active_file_bytes",
            GAUGE,
            "Current total active file in bytes.",
        );
        self.of_memory(names, |_, usage| {
            Some(usage.details.as_ref()?.memory.active_file)
        });
        let names = (
            "container_memory_total_inactive_file_bytes",
            GAUGE,
            "Current total inactive file in bytes.",
        );
        self.of_memory(names, |_, usage| {
            Some(usage.details.as_ref()?.memory.inactive_file)
        });
        let names = (
            "container_memory_kernel_usage",
            GAUGE,
            "Size of kernel memory allocated in bytes.",
        );
        self.of_memory(names, |_, usage| {
            let details = usage.details.as_ref()?;
            details.memory_events.kernel.or(details.memory.kernel)
        });
        let names = (
            "container_memory_max_usage_bytes",
            GAUGE,
            "Maximum memory usage recorded in bytes",
        );
        self.of_memory(names, |_, usage| {
            usage.details.as_ref()?.memory_events.max_usage
        });
        let names = (
            "container_memory_failcnt",
            COUNTER,
            "Number of memory usage hits limits",
        );
        self.of_memory(names, |_, usage| {
            usage.details.as_ref()?.memory_events.failures
        });
        let names = (
            "container_oom_events_total",
            COUNTER,
            "Count of out of memory events observed for the container",
        );
        self.of_memory(names, |_, usage| {
            usage.details.as_ref()?.memory_events.oom_kills
        });
        let names = (
            "container_memory_failures_total",
            COUNTER,
            "Cumulative count of memory allocation failures.",
        );
        self.family(names, |row, family| {
            let Some(memory) = row.usage.and_then(|usage| usage.memory) else {
                return;
            };
            for (kind, count) in [
                ("pgfault", memory.page_faults),
                ("pgmajfault", memory.major_page_faults),
            ] {
                let Some(count) = count else { continue };
                // The kernel's counters include cgroups below.
                for scope in ["container", "hierarchy"] {
                    let labels = [("failure_type", kind), ("scope", scope)];
                    family.add(row, &labels, Value::Integer(count));
                }
            }
        });
    }

    fn tasks(&mut self) {
        let names = (
            "container_processes",
            GAUGE,
            "Number of processes running inside the container.",
        );
        self.of_cpu(names, |it| it.tasks.processes.map(Value::Integer));
        let names = (
            "container_threads",
            GAUGE,
            "Number of threads running inside the container",
        );
        self.of_cpu(names, |it| it.tasks.threads.map(Value::Integer));
        let names = (
            "container_threads_max",
            GAUGE,
            "Maximum number of threads allowed inside the container, infinity if value is zero",
        );
        self.of_cpu(names, |it| {
            it.tasks.threads?;
            Some(Value::Integer(it.tasks.threads_max.unwrap_or_default()))
        });
        let names = (
            "container_file_descriptors",
            GAUGE,
            "Number of open file descriptors for the container.",
        );
        self.of_cpu(names, |it| Some(Value::Integer(it.tasks.descriptors?.all)));
        let names = (
            "container_sockets",
            GAUGE,
            "Number of open sockets for the container.",
        );
        self.of_cpu(names, |it| {
            Some(Value::Integer(it.tasks.descriptors?.sockets))
        });
        let names = (
            "container_ulimits_soft",
            GAUGE,
            "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        );
        self.family(names, |row, family| {
            if let Some(limit) = details(row).and_then(|it| it.tasks.max_open_files) {
                let value = match limit {
                    SoftLimit::Unlimited => Value::Unlimited,
                    SoftLimit::At(limit) => Value::Integer(limit),
                };
                family.add(row, &[("ulimit", "max_open_files")], value);
            }
        });
    }

    fn network(&mut self) {
        for (direction, of_interface) in [
            (
                RECEIVE,
                (|it| it.receive) as fn(&cgroup_stats::Interface) -> Direction,
            ),
            (TRANSMIT, |it| it.transmit),
        ] {
            for ((name, help), value) in direction.into_iter().zip(COUNTS) {
                self.family((name, COUNTER, help), |row, family| {
                    for interface in row.interfaces {
                        let labels = [("interface", interface.name.as_str())];
                        let count = value(of_interface(interface));
                        family.add(row, &labels, Value::Integer(count));
                    }
                });
            }
        }
    }

    fn pressures(&mut self) {
        let of_cpu = |usage: &Usage| usage.cpu?.pressure;
        let of_memory = |usage: &Usage| usage.memory?.pressure;
        let of_io = |usage: &Usage| usage.io_pressure;
        self.pressure(
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
            |usage| full(of_cpu(usage)),
        );
        self.pressure(
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
            |usage| some(of_cpu(usage)),
        );
        self.pressure(
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
            |usage| full(of_memory(usage)),
        );
        self.pressure(
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
            |usage| some(of_memory(usage)),
        );
        self.pressure(
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
            |usage| full(of_io(usage)),
        );
        self.pressure(
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
            |usage| some(of_io(usage)),
        );
    }

    fn pressure(
        &mut self,
        name: &'static str,
        help: &'static str,
        value: impl Fn(&Usage) -> Option<u64>,
    ) {
        self.single((name, COUNTER, help), |row| {
            value(row.usage?).map(Value::Nanoseconds)
        });
    }

    fn limits(&mut self) {
        let names = (
            "container_spec_cpu_period",
            GAUGE,
            "CPU period of the container.",
        );
        self.of_cpu(names, |it| Some(Value::Integer(it.cpu_limits?.period)));
        let names = (
            "container_spec_cpu_quota",
            GAUGE,
            "CPU quota of the container.",
        );
        self.of_cpu(names, |it| it.cpu_limits?.quota.map(Value::Integer));
        let names = (
            "container_spec_cpu_shares",
            GAUGE,
            "CPU share of the container.",
        );
        self.of_cpu(names, |it| Some(Value::Integer(it.cpu_limits?.shares)));
        // 0 means that there is no limit.
        let names = (
            "container_spec_memory_limit_bytes",
            GAUGE,
            "Memory limit for the container.",
        );
        self.of_memory(names, |_, usage| {
            let limits = usage.details.as_ref()?.memory_limits;
            Some(limits.memory.unwrap_or_default())
        });
        let names = (
            "container_spec_memory_swap_limit_bytes",
            GAUGE,
            "Memory swap limit for the container.",
        );
        self.of_memory(names, |_, usage| {
            let limits = usage.details.as_ref()?.memory_limits;
            Some(limits.swap.unwrap_or_default())
        });
        let names = (
            "container_spec_memory_reservation_limit_bytes",
            GAUGE,
            "Memory reservation limit for the container.",
        );
        self.of_memory(names, |_, usage| {
            let limits = usage.details.as_ref()?.memory_limits;
            Some(limits.reservation.unwrap_or_default())
        });
    }
}

/// The names and help texts of the network's counters, in the order of [`COUNTS`].
const RECEIVE: [(&str, &str); 4] = [
    (
        "container_network_receive_bytes_total",
        "Cumulative count of bytes received",
    ),
    (
        "container_network_receive_packets_total",
        "Cumulative count of packets received",
    ),
    (
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
    ),
    (
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
    ),
];
const TRANSMIT: [(&str, &str); 4] = [
    (
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted",
    ),
    (
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
    ),
    (
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
    ),
];
const COUNTS: [fn(Direction) -> u64; 4] = [
    |it| it.bytes,
    |it| it.packets,
    |it| it.dropped,
    |it| it.errors,
];

fn some(pressure: Option<Pressure>) -> Option<u64> {
    Some(pressure?.some?.total)
}

fn full(pressure: Option<Pressure>) -> Option<u64> {
    Some(pressure?.full?.total)
}
