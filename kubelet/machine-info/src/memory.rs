//! Memory, swap, huge pages and memory modules.

use std::collections::BTreeMap;

use super::{
    format::{HugePages, MemoryModules},
    machine_files::MachineFiles,
};

const CONTROLLERS: &str = "sys/devices/system/edac/mc";

/// A field of a file in the format of `/proc/meminfo`, in bytes.
pub(super) fn field_in_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The huge pages in a directory such as `/sys/kernel/mm/hugepages`.
pub(super) fn huge_pages(dir: &str, files: &MachineFiles) -> Vec<HugePages> {
    let names = files.names(dir).into_iter();
    let mut pages: Vec<HugePages> = names
        .filter_map(|name| {
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some(HugePages {
                page_size: size.parse().ok()?,
                num_pages: files.value(&format!("{dir}/{name}/nr_hugepages"))?,
            })
        })
        .collect();
    pages.sort_unstable_by_key(|pages| pages.page_size);
    pages
}

/// Memory modules by type, from the kernel's EDAC drivers.
pub(super) fn modules(files: &MachineFiles) -> BTreeMap<String, MemoryModules> {
    let mut by_type: BTreeMap<String, MemoryModules> = BTreeMap::new();
    for controller in files.numbered(CONTROLLERS, "mc") {
        let controller = format!("{CONTROLLERS}/mc{controller}");
        for module in files.numbered(&controller, "dimm") {
            let module = format!("{controller}/dimm{module}");
            let mebibytes: Option<u64> = files.value(&format!("{module}/size"));
            let kind = files.text(&format!("{module}/dimm_mem_type"));
            let (Some(mebibytes), Some(kind)) = (mebibytes, kind) else {
                continue;
            };
            let sum = by_type.entry(kind).or_default();
            sum.capacity = sum
                .capacity
                .saturating_add(mebibytes.saturating_mul(1 << 20));
            sum.dimm_count += 1;
        }
    }
    by_type
}
