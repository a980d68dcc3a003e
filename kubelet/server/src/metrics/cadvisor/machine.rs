//! The metrics of the machine, and the versions of its software.

use kubelet_machine_info::MachineInfo;
use kubelet_metrics::{Exposition, Labels};

/// Writes the metrics; none but the error if the machine could not be read.
pub(super) fn write(machine: Option<&MachineInfo>, page: &mut Exposition) {
    if let Some(machine) = machine {
        versions(machine, page);
        numbers(machine, page);
        memory_modules(machine, page);
    }
    page.gauge(
        "machine_scrape_error",
        "1 if there was an error while getting machine metrics, 0 otherwise.",
        u8::from(machine.is_none()),
    );
}

fn versions(machine: &MachineInfo, page: &mut Exposition) {
    let name = "cadvisor_version_info";
    page.family(
        name,
        "gauge",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
    );
    // Upstream's kubelet leaves the empty ones empty.
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel_version.as_str()),
        ("osVersion", machine.os_version.as_str()),
    ];
    page.sample(name, &labels, 1, None);
}

fn numbers(machine: &MachineInfo, page: &mut Exposition) {
    let labels = identity(machine);
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    for (name, help, value) in [
        (
            "machine_cpu_books",
            "Number of CPU books.",
            count(machine.num_books),
        ),
        (
            "machine_cpu_cores",
            "Number of logical CPU cores.",
            count(machine.num_cores),
        ),
        (
            "machine_cpu_drawers",
            "Number of CPU drawers.",
            count(machine.num_drawers),
        ),
        (
            "machine_cpu_physical_cores",
            "Number of physical CPU cores.",
            count(machine.num_physical_cores),
        ),
        (
            "machine_cpu_sockets",
            "Number of CPU sockets.",
            count(machine.num_sockets),
        ),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            machine.memory_capacity,
        ),
        (
            "machine_nvm_avg_power_budget_watts",
            "NVM power budget.",
            machine.nvm.avg_power_budget,
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            machine.swap_capacity,
        ),
    ] {
        page.family(name, "gauge", help);
        page.labelled_sample(name, &labels, &[], value, None);
    }
    let name = "machine_nvm_capacity";
    page.family(
        name,
        "gauge",
        "NVM capacity value labeled by NVM mode (memory mode or app direct mode).",
    );
    for (mode, value) in [
        ("app_direct_mode", machine.nvm.app_direct_mode_capacity),
        ("memory_mode", machine.nvm.memory_mode_capacity),
    ] {
        page.labelled_sample(name, &labels, &[("mode", mode)], value, None);
    }
}

/// Memory modules by type; nothing on a machine without an EDAC driver.
fn memory_modules(machine: &MachineInfo, page: &mut Exposition) {
    if machine.memory_by_type.is_empty() {
        return;
    }
    let labels = identity(machine);
    let name = "machine_dimm_capacity_bytes";
    page.family(
        name,
        "gauge",
        "Total RAM DIMM capacity (all types memory modules) value labeled by dimm type.",
    );
    for (kind, modules) in &machine.memory_by_type {
        page.labelled_sample(name, &labels, &[("type", kind)], modules.capacity, None);
    }
    let name = "machine_dimm_count";
    page.family(
        name,
        "gauge",
        "Number of RAM DIMM (all types memory modules) value labeled by dimm type.",
    );
    for (kind, modules) in &machine.memory_by_type {
        page.labelled_sample(name, &labels, &[("type", kind)], modules.dimm_count, None);
    }
}

fn identity(machine: &MachineInfo) -> Labels {
    Labels::new(&[
        ("boot_id", &machine.boot_id),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ])
}

#[cfg(test)]
mod tests {
    use kubelet_machine_info::MemoryModules;

    use super::*;

    fn text(machine: Option<&MachineInfo>) -> String {
        let mut page = Exposition::default();
        write(machine, &mut page);
        page.into_text()
    }

    #[test]
    fn a_machine_has_its_numbers_with_its_identity() {
        let mut machine = MachineInfo {
            num_cores: 8,
            num_physical_cores: 4,
            num_sockets: 2,
            memory_capacity: 1 << 30,
            boot_id: "b".to_owned(),
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            kernel_version: "6.1".to_owned(),
            os_version: "Some Linux".to_owned(),
            ..MachineInfo::default()
        };
        let own = "boot_id=\"b\",machine_id=\"m\",system_uuid=\"u\"";
        let page = text(Some(&machine));
        for line in [
            format!("machine_cpu_cores{{{own}}} 8\n"),
            format!("machine_cpu_physical_cores{{{own}}} 4\n"),
            format!("machine_cpu_sockets{{{own}}} 2\n"),
            format!("machine_memory_bytes{{{own}}} 1073741824\n"),
            format!("machine_swap_bytes{{{own}}} 0\n"),
            format!("machine_nvm_capacity{{{own},mode=\"memory_mode\"}} 0\n"),
            format!("machine_nvm_avg_power_budget_watts{{{own}}} 0\n"),
            "cadvisor_version_info{cadvisorRevision=\"\",cadvisorVersion=\"\",dockerVersion=\"\",\
             kernelVersion=\"6.1\",osVersion=\"Some Linux\"} 1\n"
                .to_owned(),
            "machine_scrape_error 0\n".to_owned(),
        ] {
            assert!(page.contains(&line), "{line} is not in {page}");
        }
        assert!(!page.contains("machine_dimm_"), "{page}");
        let modules = MemoryModules {
            capacity: 6 << 20,
            dimm_count: 2,
        };
        machine.memory_by_type = [("DDR4".to_owned(), modules)].into();
        let page = text(Some(&machine));
        let line = format!("machine_dimm_count{{{own},type=\"DDR4\"}} 2\n");
        assert!(page.contains(&line), "{page}");
    }

    #[test]
    fn an_unreadable_machine_is_an_error() {
        let page = text(None);
        assert!(page.ends_with("\nmachine_scrape_error 1\n"), "{page}");
        assert!(!page.contains("machine_cpu_cores"), "{page}");
    }
}
