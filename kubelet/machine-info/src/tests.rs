//! A machine with two sockets, which are two NUMA nodes, of two cores with two threads each.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// CPUs 0 to 3 are the first threads of the cores, 4 to 7 the second ones; 8 is offline.
fn machine() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for cpu in 0..9_u32 {
        let (socket, core) = (cpu % 4 / 2, cpu % 2);
        let node = format!("sys/devices/system/node/node{socket}/cpu{cpu}");
        fs::create_dir_all(root.join(node)).unwrap();
        let of = |file: &str| format!("sys/devices/system/cpu/cpu{cpu}/{file}");
        write(root, &of("topology/core_id"), &format!("{core}\n"));
        write(
            root,
            &of("topology/physical_package_id"),
            &format!("{socket}\n"),
        );
        let own = format!("000000{:02x}\n", 0b1_0001 << (cpu % 4));
        let of_socket = format!("000000{:02x}\n", 0b11_0011 << (socket * 2));
        for (index, level, kind, size, map) in [
            (0, 1, "Data", "32K", &own),
            (1, 1, "Instruction", "64K", &own),
            (2, 2, "Unified", "512K", &own),
            (3, 3, "Unified", "8192K", &of_socket),
        ] {
            let id = if level < 3 { cpu % 4 } else { socket };
            for (file, text) in [
                ("id", &id.to_string()),
                ("level", &level.to_string()),
                ("type", &kind.to_owned()),
                ("size", &size.to_owned()),
                ("shared_cpu_map", map),
            ] {
                write(root, &of(&format!("cache/index{index}/{file}")), text);
            }
        }
    }
    for node in 0..2 {
        let of = |file: &str| format!("sys/devices/system/node/node{node}/{file}");
        let memory = format!("\nNode {node} MemTotal:       2048 kB\nNode {node} MemFree: 1 kB\n");
        write(root, &of("meminfo"), &memory);
        let distances = if node == 0 { "10 21\n" } else { "21 10\n" };
        write(root, &of("distance"), distances);
        let pages = "hugepages/hugepages-2048kB/nr_hugepages";
        write(root, &of(pages), &format!("{node}\n"));
    }
    for (path, text) in [
        ("sys/devices/system/cpu/online", "0-3,4-7\n"),
        (
            "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
            "0\n",
        ),
        (
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "1\n",
        ),
        ("sys/block/sda/dev", "8:0\n"),
        ("sys/block/sda/size", "2048\n"),
        (
            "sys/block/sda/queue/scheduler",
            "none [mq-deadline] kyber\n",
        ),
        ("sys/block/nvme0c0n1/dev", "259:1\n"),
        ("sys/block/nvme0c0n1/size", "1\n"),
        ("sys/block/nvme0c0n1/hidden", "1\n"),
        ("sys/block/dm-0/dev", "253:0\n"),
        ("sys/block/dm-0/size", "8\n"),
        ("sys/block/loop0/dev", "7:0\n"),
        ("sys/block/loop0/size", "8\n"),
        ("sys/class/net/eth0/address", "02:00:00:00:00:01\n"),
        ("sys/class/net/eth0/mtu", "1500\n"),
        ("sys/class/net/eth0/speed", "10000\n"),
        ("sys/class/net/wan0/mtu", "9000\n"),
        ("sys/class/net/lo/mtu", "65536\n"),
        ("sys/class/net/veth12/mtu", "1500\n"),
        ("sys/class/net/docker0/mtu", "1500\n"),
        ("sys/class/net/bonding_masters", "\n"),
        (
            "sys/devices/system/edac/mc/mc0/dimm0/dimm_mem_type",
            "Unbuffered-DDR4\n",
        ),
        ("sys/devices/system/edac/mc/mc0/dimm0/size", "4\n"),
        (
            "sys/devices/system/edac/mc/mc1/dimm0/dimm_mem_type",
            "Unbuffered-DDR4\n",
        ),
        ("sys/devices/system/edac/mc/mc1/dimm0/size", "2\n"),
        (
            "proc/cpuinfo",
            "processor: 0\nvendor_id\t: SomeVendor\ncpu MHz\t\t: 2199.998\n\n",
        ),
        (
            "proc/meminfo",
            "MemTotal:        4096 kB\nSwapTotal:  1024 kB\n",
        ),
        ("proc/sys/kernel/random/boot_id", "b-1\n"),
        ("etc/machine-id", "m-1\n"),
        ("sys/class/dmi/id/product_uuid", "u-1\n"),
        (
            "proc/self/mountinfo",
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n",
        ),
    ] {
        write(root, path, text);
    }
    dir
}

async fn spec(root: &Path) -> Value {
    let machine = MachineReader::new(root.to_owned()).read().await.unwrap();
    serde_json::to_value(&*machine).unwrap()
}

#[tokio::test]
async fn a_machine_is_counted() {
    let machine = machine();
    let spec = spec(machine.path()).await;
    for (name, expected) in [
        ("vendor_id", json!("SomeVendor")),
        ("num_cores", json!(8)),
        ("num_physical_cores", json!(4)),
        ("num_sockets", json!(2)),
        ("cpu_frequency_khz", json!(2_199_998)),
        ("memory_capacity", json!(4 << 20)),
        ("swap_capacity", json!(1 << 20)),
        ("machine_id", json!("m-1")),
        ("system_uuid", json!("u-1")),
        ("boot_id", json!("b-1")),
        ("cloud_provider", json!("Unknown")),
        ("instance_type", json!("Unknown")),
        ("instance_id", json!("None")),
        (
            "memory_by_type",
            json!({"Unbuffered-DDR4": {"capacity": 6 << 20, "dimm_count": 2}}),
        ),
        (
            "nvm",
            json!({"memory_mode_capacity": 0, "app direct_mode_capacity": 0, "avg_power_budget": 0}),
        ),
        (
            "hugepages",
            json!([
                {"page_size": 2048, "num_pages": 1},
                {"page_size": 1_048_576, "num_pages": 0},
            ]),
        ),
        (
            "disk_map",
            json!({
                "8:0": {"name": "sda", "major": 8, "minor": 0, "size": 1 << 20,
                        "scheduler": "mq-deadline"},
                "253:0": {"name": "dm-0", "major": 253, "minor": 0, "size": 4096,
                          "scheduler": "none"},
            }),
        ),
        (
            "network_devices",
            json!([
                {"name": "eth0", "mac_address": "02:00:00:00:00:01", "speed": 10_000, "mtu": 1500},
                {"name": "wan0", "mac_address": "", "speed": 0, "mtu": 9000},
            ]),
        ),
    ] {
        assert_eq!(spec[name], expected, "{name}");
    }
    assert!(spec.get("num_books").is_none(), "{spec}");
    // The mount point is this machine's own.
    let file_systems = &spec["filesystems"];
    assert_eq!(file_systems[0]["device"], "/dev/sda1");
    assert_eq!(file_systems[0]["type"], "vfs");
    assert_eq!(file_systems[0]["has_inodes"], true);
    assert!(file_systems[0]["capacity"].as_u64().unwrap() > 0, "{spec}");
}

#[tokio::test]
async fn cores_and_caches_belong_to_their_nodes() {
    let machine = machine();
    let spec = spec(machine.path()).await;
    let cache = |id: u32, level: u32, kind: &str, kibibytes: u64| json!({"id": id, "size": kibibytes << 10, "type": kind, "level": level});
    let core = |node: u32, core: u32| {
        let cpu = node * 2 + core;
        json!({
            "core_id": core, "thread_ids": [cpu, cpu + 4], "socket_id": node, "uncore_caches": [],
            "caches": [
                cache(cpu, 1, "Data", 32), cache(cpu, 1, "Instruction", 64),
                cache(cpu, 2, "Unified", 512),
            ],
        })
    };
    let node = |id: u32, distances: [u64; 2]| {
        json!({
            "node_id": id, "memory": 2 << 20, "cores": [core(id, 0), core(id, 1)],
            "hugepages": [{"page_size": 2048, "num_pages": id}],
            "caches": [cache(id, 3, "Unified", 8192)], "distances": distances,
        })
    };
    assert_eq!(
        spec["topology"],
        json!([node(0, [10, 21]), node(1, [21, 10])])
    );
}

#[tokio::test]
async fn without_numa_nodes_sockets_take_their_place() {
    let machine = machine();
    fs::remove_dir_all(machine.path().join("sys/devices/system/node")).unwrap();
    // A level 3 cache of part of the socket.
    for cpu in [0, 4] {
        let map = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_map");
        write(machine.path(), &map, "00000011\n");
    }
    let spec = spec(machine.path()).await;
    let nodes = spec["topology"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[1]["cores"][1]["thread_ids"], json!([3, 7]));
    assert_eq!(nodes[0]["cores"][0]["uncore_caches"][0]["level"], 3);
    assert_eq!(spec["num_cores"], 8);
}

#[tokio::test]
async fn books_and_drawers_are_shown_where_they_exist() {
    let machine = machine();
    for cpu in 0..8 {
        let of = |file: &str| format!("sys/devices/system/cpu/cpu{cpu}/topology/{file}");
        write(machine.path(), &of("book_id"), &format!("{}\n", cpu % 2));
        write(machine.path(), &of("drawer_id"), "0\n");
    }
    let spec = spec(machine.path()).await;
    assert_eq!(
        (&spec["num_books"], &spec["num_drawers"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(spec["topology"][0]["cores"][1]["book_id"], "1");
}

#[tokio::test]
async fn an_unreadable_machine_has_no_numbers() {
    let nothing = tempfile::tempdir().unwrap();
    let spec = spec(nothing.path()).await;
    assert_eq!(spec["num_cores"], 0);
    assert_eq!(spec["topology"], json!([]));
    assert_eq!(spec["system_uuid"], "");
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_read_again_after_five_minutes() {
    let machine = machine();
    let reader = MachineReader::new(machine.path().to_owned());
    let swap = async || reader.read().await.unwrap().swap_capacity;
    assert_eq!(swap().await, 1 << 20);
    write(machine.path(), "proc/meminfo", "SwapTotal: 2 kB\n");
    assert_eq!(swap().await, 1 << 20);
    tokio::time::advance(VALID).await;
    assert_eq!(swap().await, 2048);
}

#[test]
fn frequencies_are_read_in_both_formats() {
    for (cpuinfo, expected) in [
        ("cpu MHz\t\t: 2199.998\n", 2_199_998),
        ("clock\t\t: 3425.000000MHz\n", 3_425_000),
        ("", 0),
    ] {
        assert_eq!(frequency(cpuinfo), expected, "{cpuinfo}");
    }
}
