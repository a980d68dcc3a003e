//! The CPUs of containers on recorded machines, compared with those that Kubernetes 1.36 takes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use kubelet_cpu_manager::{CpuTopology, Level, Packing, Placement, take};
use kubelet_host::cpu_set::CpuSet;
use kubelet_machine_info::MachineReader;
use proptest::{prelude::*, sample::select};
use tokio::runtime::Builder;

const MACHINES: [(&str, &str); 9] = [
    ("core-i7-8650u", include_str!("machines/core-i7-8650u.csv")),
    (
        "core-i9-12900k",
        include_str!("machines/core-i9-12900k.csv"),
    ),
    (
        "epyc-7742-nps4-smt-off",
        include_str!("machines/epyc-7742-nps4-smt-off.csv"),
    ),
    (
        "epyc-7763-2s-nps4",
        include_str!("machines/epyc-7763-2s-nps4.csv"),
    ),
    ("power9-2s", include_str!("machines/power9-2s.csv")),
    (
        "qemu-16-sockets",
        include_str!("machines/qemu-16-sockets.csv"),
    ),
    (
        "xeon-e5-2650v4-2s",
        include_str!("machines/xeon-e5-2650v4-2s.csv"),
    ),
    (
        "xeon-gold-6130-2s-smt-off",
        include_str!("machines/xeon-gold-6130-2s-smt-off.csv"),
    ),
    (
        "xeon-gold-6230-2s-snc2",
        include_str!("machines/xeon-gold-6230-2s-snc2.csv"),
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

static TOPOLOGIES: LazyLock<BTreeMap<&str, CpuTopology>> = LazyLock::new(|| {
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

fn placement(name: &str, topology: &CpuTopology) -> Placement {
    match name {
        "packed" => Placement::Packed(Packing::Cores),
        "uncore" => Placement::Packed(Packing::UncoreCaches),
        "spread" => Placement::Packed(Packing::AcrossCores),
        "numa" => Placement::Distributed { group: 1 },
        "numa-cores" => Placement::Distributed {
            group: topology.cpus_per(Level::Core),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn containers_get_the_cpus_that_upstream_gives_them() {
    let rows = include_str!("placement.tsv").lines();
    let mut different = Vec::new();
    let mut count = 0;
    for row in rows.filter(|row| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let [machine, name, available, request, expected] = fields[..] else {
            panic!("{row}");
        };
        let topology = &TOPOLOGIES[machine];
        let placement = placement(name, topology);
        let taken = take(
            topology,
            &available.parse().unwrap(),
            request.parse().unwrap(),
            placement,
        );
        let taken = taken.map_or_else(|error| format!("error: {error}"), |cpus| cpus.to_string());
        if taken != expected {
            different.push(format!("{row}\n  taken: {taken}"));
        }
        count += 1;
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(count >= 60, "{count} rows");
}

/// Where upstream's own rules give another result than its code.
#[test]
fn faults_of_upstream_are_not_repeated() {
    for (machine, name, available, request, expected, _upstream) in [
        // It takes CPU 0, which is not available, as the socket has as many free CPUs as sockets
        // have on average.
        (
            "xeon-gold-6130-2s-smt-off",
            "packed",
            "2-5,8-20,22-31",
            16,
            "2-5,8,9,11,13,15,17,19,23,25,27,29,31",
            "0,2-4,8,10,12,14,16,18,20,22,24,26,28,30",
        ),
        // The best combination of NUMA nodes, the first, is overwritten by a later one.
        (
            "epyc-7763-2s-nps4",
            "numa-cores",
            "2-127,130-255",
            192,
            "16-111,144-239",
            "16-95,112-127,144-223,240-255",
        ),
    ] {
        let topology = &TOPOLOGIES[machine];
        let available = available.parse().unwrap();
        let taken = take(topology, &available, request, placement(name, topology)).unwrap();
        assert_eq!(taken, expected.parse().unwrap(), "{machine}: {taken}");
    }
}

proptest! {
    #[test]
    fn exactly_as_many_available_cpus_as_requested_are_taken(
        name in select(vec!["packed", "uncore", "spread", "numa", "numa-cores"]),
        machine in select(MACHINES.to_vec()),
        used in prop::collection::vec(any::<bool>(), 256),
        request in 0_usize..256,
    ) {
        let topology = &TOPOLOGIES[machine.0];
        let all = topology.cpus();
        let is_free = |cpu: &u32| all.contains(*cpu) && !used[*cpu as usize];
        let available: CpuSet = (0..256).filter(is_free).collect();
        match take(topology, &available, request, placement(name, topology)) {
            Ok(taken) => {
                prop_assert_eq!(taken.len(), request);
                prop_assert!(taken.is_subset(&available));
            }
            Err(_) => prop_assert!(available.len() < request),
        }
    }
}
