//! Recorded machines.

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use kubelet_cpu_manager::CpuTopology;
use kubelet_host::cpu_set::CpuSet;
use kubelet_machine_info::MachineReader;
use tokio::runtime::Builder;

/// The machines: their names, and the places of their CPUs.
pub(crate) const MACHINES: [(&str, &str); 9] = [
    ("core-i7-8650u", include_str!("core-i7-8650u.csv")),
    ("core-i9-12900k", include_str!("core-i9-12900k.csv")),
    (
        "epyc-7742-nps4-smt-off",
        include_str!("epyc-7742-nps4-smt-off.csv"),
    ),
    ("epyc-7763-2s-nps4", include_str!("epyc-7763-2s-nps4.csv")),
    ("power9-2s", include_str!("power9-2s.csv")),
    ("qemu-16-sockets", include_str!("qemu-16-sockets.csv")),
    ("xeon-e5-2650v4-2s", include_str!("xeon-e5-2650v4-2s.csv")),
    (
        "xeon-gold-6130-2s-smt-off",
        include_str!("xeon-gold-6130-2s-smt-off.csv"),
    ),
    (
        "xeon-gold-6230-2s-snc2",
        include_str!("xeon-gold-6230-2s-snc2.csv"),
    ),
];

/// Writes the files that the kernel has for these CPUs, below `root`.
fn write_sysfs(root: &Path, machine: &str) {
    let cpus = root.join("sys/devices/system/cpu");
    let lines = machine.lines().filter(|line| !line.starts_with('#'));
    let mut caches: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut online = Vec::new();
    for line in lines {
        let mut fields = line.split(',').map(|field| field.parse::<u32>().ok());
        let mut next = || fields.next().unwrap();
        let [cpu, core, socket, node] = [(); 4].map(|()| next().unwrap());
        let topology = cpus.join(format!("cpu{cpu}/topology"));
        fs::create_dir_all(&topology).unwrap();
        for (file, value) in [("core_id", core), ("physical_package_id", socket)] {
            fs::write(topology.join(file), format!("{value}\n")).unwrap();
        }
        let node = root.join(format!("sys/devices/system/node/node{node}/cpu{cpu}"));
        fs::create_dir_all(node).unwrap();
        if let Some(cache) = next() {
            caches.entry(cache).or_default().push(cpu);
        }
        online.push(cpu);
    }
    let online: CpuSet = online.into_iter().collect();
    fs::write(cpus.join("online"), format!("{online}\n")).unwrap();
    for (id, shared) in caches {
        let mut map = [0_u32; 8];
        for cpu in &shared {
            map[*cpu as usize / 32] |= 1 << (cpu % 32);
        }
        let words: Vec<String> = map.iter().rev().map(|word| format!("{word:08x}")).collect();
        for cpu in shared {
            let cache = cpus.join(format!("cpu{cpu}/cache/index3"));
            fs::create_dir_all(&cache).unwrap();
            for (file, text) in [
                ("id", id.to_string()),
                ("level", "3".to_owned()),
                ("type", "Unified".to_owned()),
                ("size", "16384K".to_owned()),
                ("shared_cpu_map", words.join(",")),
            ] {
                fs::write(cache.join(file), format!("{text}\n")).unwrap();
            }
        }
    }
}

/// The topology of each machine, by name.
pub(crate) static TOPOLOGIES: LazyLock<BTreeMap<&str, CpuTopology>> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().build().unwrap();
    let machines = MACHINES.iter().map(|(name, machine)| {
        let root = tempfile::tempdir().unwrap();
        write_sysfs(root.path(), machine);
        let reader = MachineReader::new(root.path().to_owned());
        let machine = runtime.block_on(reader.read()).unwrap();
        (*name, CpuTopology::of(&machine))
    });
    machines.collect()
});
