//! The runtime's own numbers of pods whose cgroups were not found.

use std::collections::HashMap;

use cgroup_stats::{Direction, Interface, Pressure, Stall, Swap};
use cri_proto::runtime::v1::{
    self, NetworkInterfaceUsage, PodSandboxStats, PsiData, PsiStats, UInt64Value,
};

use crate::{
    file_systems::writable_layer,
    usage::{CpuUsage, MemoryUsage, PodStats, Usage},
};

/// Completes the pods that lack numbers by those of the runtime.
pub(crate) fn complete(pods: &mut [PodStats], reported: &[PodSandboxStats]) {
    let by_uid: HashMap<&str, &PodSandboxStats> = reported
        .iter()
        .filter_map(|stats| {
            let metadata = stats.attributes.as_ref()?.metadata.as_ref()?;
            Some((metadata.uid.as_str(), stats))
        })
        .collect();
    for pod in pods {
        let Some(stats) = by_uid.get(pod.uid().as_str()) else {
            continue;
        };
        let Some(linux) = &stats.linux else { continue };
        if pod.usage == Usage::default() {
            pod.usage = Usage {
                cpu: linux.cpu.as_ref().and_then(cpu),
                memory: linux.memory.as_ref().map(memory),
                io_pressure: linux.io.as_ref().and_then(io),
                ..Usage::default()
            };
        }
        if pod.interfaces.is_empty()
            && let Some(network) = &linux.network
        {
            let default = network.default_interface.iter();
            let all = default.chain(&network.interfaces);
            pod.interfaces = all.map(interface).collect();
            pod.interfaces_at = network.timestamp;
        }
        if pod.processes.is_none_or(|count| count == 0) {
            let process = linux.process.as_ref();
            pod.processes = process.and_then(|process| number(process.process_count));
        }
        for container in &mut pod.containers {
            let found = linux.containers.iter().find(|stats| {
                let attributes = stats.attributes.as_ref();
                attributes.is_some_and(|attributes| attributes.id == container.id)
            });
            let Some(stats) = found else { continue };
            if container.usage == Usage::default() {
                container.usage = of_container(stats);
            }
            if container.writable_layer.is_none() {
                container.writable_layer = writable_layer(stats);
            }
        }
    }
}

fn of_container(stats: &v1::ContainerStats) -> Usage {
    Usage {
        cpu: stats.cpu.as_ref().and_then(cpu),
        memory: stats.memory.as_ref().map(memory),
        swap: stats.swap.as_ref().and_then(|swap| {
            Some(Swap {
                usage: number(swap.swap_usage_bytes)?,
                available: number(swap.swap_available_bytes),
            })
        }),
        io_pressure: stats.io.as_ref().and_then(io),
        details: None,
    }
}

fn cpu(usage: &v1::CpuUsage) -> Option<CpuUsage> {
    Some(CpuUsage {
        at: usage.timestamp,
        total: number(usage.usage_core_nano_seconds)?,
        nano_cores: number(usage.usage_nano_cores),
        pressure: usage.psi.as_ref().map(pressure),
    })
}

fn memory(usage: &v1::MemoryUsage) -> MemoryUsage {
    MemoryUsage {
        at: usage.timestamp,
        available: number(usage.available_bytes),
        usage: number(usage.usage_bytes),
        working_set: number(usage.working_set_bytes),
        rss: number(usage.rss_bytes),
        page_faults: number(usage.page_faults),
        major_page_faults: number(usage.major_page_faults),
        pressure: usage.psi.as_ref().map(pressure),
    }
}

fn io(usage: &v1::IoUsage) -> Option<Pressure> {
    usage.psi.as_ref().map(pressure)
}

fn pressure(psi: &PsiStats) -> Pressure {
    let stall = |data: PsiData| Stall {
        avg10: data.avg10,
        avg60: data.avg60,
        avg300: data.avg300,
        total: data.total,
    };
    Pressure {
        some: psi.some.map(stall),
        full: psi.full.map(stall),
    }
}

/// CRI counts neither packets nor drops.
fn interface(usage: &NetworkInterfaceUsage) -> Interface {
    let direction = |bytes, errors| Direction {
        bytes: number(bytes).unwrap_or_default(),
        errors: number(errors).unwrap_or_default(),
        ..Direction::default()
    };
    Interface {
        name: usage.name.clone(),
        receive: direction(usage.rx_bytes, usage.rx_errors),
        transmit: direction(usage.tx_bytes, usage.tx_errors),
    }
}

fn number(value: Option<UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}
