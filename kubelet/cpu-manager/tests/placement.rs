//! The CPUs of containers on recorded machines, compared with those that Kubernetes 1.36 takes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod machines;

use kubelet_cpu_manager::{CpuTopology, Level, Packing, Placement, take};
use kubelet_host::cpu_set::CpuSet;
use machines::{MACHINES, TOPOLOGIES};
use proptest::{prelude::*, sample::select};

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
