//! NUMA nodes, cores and caches, from `/sys/devices/system/{node,cpu}`.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_host::cpu_set::CpuSet;

use super::{
    format::{Cache, Core, HugePages, Node},
    machine_files::MachineFiles,
    memory::{field_in_bytes, huge_pages},
};

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// The nodes of a machine and their CPUs.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) nodes: Vec<Node>,
}

impl Topology {
    /// Reads the online CPUs, by NUMA node; by socket if there are no nodes.
    pub(super) fn read(files: &MachineFiles) -> Self {
        let online: Option<CpuSet> = files.value(&format!("{CPUS}/online"));
        let is_online = |cpu: &u32| online.as_ref().is_none_or(|online| online.contains(*cpu));
        let cpus_of = |dir: &str| {
            let mut cpus = files.numbered(dir, "cpu");
            cpus.retain(is_online);
            cpus
        };
        let ids = files.numbered(NODES, "node");
        if ids.is_empty() {
            return Self::by_socket(&cpus_of(CPUS), files);
        }
        let nodes = ids.into_iter().map(|id| {
            let dir = format!("{NODES}/node{id}");
            let distances = files.text(&format!("{dir}/distance")).unwrap_or_default();
            let meminfo = files.text(&format!("{dir}/meminfo")).unwrap_or_default();
            // The lines begin with `Node 0 `.
            let memory = field_in_bytes(&meminfo, &format!("Node {id} MemTotal:"));
            Node {
                memory: memory.unwrap_or_default(),
                hugepages: node_huge_pages(&dir, files),
                distances: distances
                    .split_ascii_whitespace()
                    .filter_map(|distance| distance.parse().ok())
                    .collect(),
                ..node(id, &cpus_of(&dir), files)
            }
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    fn by_socket(cpus: &[u32], files: &MachineFiles) -> Self {
        let mut sockets: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in cpus {
            if let Some(socket) = files.value(&of_cpu(*cpu, "physical_package_id")) {
                sockets.entry(socket).or_default().push(*cpu);
            }
        }
        let nodes = sockets.into_iter();
        Self {
            nodes: nodes.map(|(id, cpus)| node(id, &cpus, files)).collect(),
        }
    }

    /// Online CPUs.
    pub(super) fn threads(&self) -> usize {
        self.cores().map(|core| core.thread_ids.len()).sum()
    }

    /// The numbers of physical cores, sockets, books and drawers.
    pub(super) fn counts(&self) -> [usize; 4] {
        let sockets: BTreeSet<u32> = self.cores().map(|core| core.socket_id).collect();
        let present = |id: fn(&Core) -> &String| {
            let ids: BTreeSet<&String> = self.cores().map(id).filter(|id| !id.is_empty()).collect();
            ids.len()
        };
        [
            self.cores().count(),
            sockets.len(),
            present(|core| &core.book_id),
            present(|core| &core.drawer_id),
        ]
    }

    fn cores(&self) -> impl Iterator<Item = &Core> {
        self.nodes.iter().flat_map(|node| &node.cores)
    }
}

fn node_huge_pages(dir: &str, files: &MachineFiles) -> Vec<HugePages> {
    huge_pages(&format!("{dir}/hugepages"), files)
}

fn node(id: u32, cpus: &[u32], files: &MachineFiles) -> Node {
    let mut node = Node {
        node_id: id,
        cores: cores(cpus, files),
        ..Node::default()
    };
    add_caches(&mut node, files);
    node
}

fn of_cpu(cpu: u32, property: &str) -> String {
    format!("{CPUS}/cpu{cpu}/topology/{property}")
}

/// CPUs grouped by core. A CPU without a core or a socket is left out, as upstream.
fn cores(cpus: &[u32], files: &MachineFiles) -> Vec<Core> {
    let mut cores: Vec<Core> = Vec::new();
    let mut known = BTreeMap::new();
    for cpu in cpus {
        let number = |property| files.value::<u32>(&of_cpu(*cpu, property));
        let (Some(core_id), Some(socket_id)) = (number("core_id"), number("physical_package_id"))
        else {
            continue;
        };
        let level = |property| files.text(&of_cpu(*cpu, property)).unwrap_or_default();
        let core = Core {
            core_id,
            socket_id,
            book_id: level("book_id"),
            drawer_id: level("drawer_id"),
            ..Core::default()
        };
        let key = (
            core.drawer_id.clone(),
            core.book_id.clone(),
            socket_id,
            core_id,
        );
        let index = *known.entry(key).or_insert(cores.len());
        if index == cores.len() {
            cores.push(core);
        }
        if let Some(core) = cores.get_mut(index) {
            core.thread_ids.push(*cpu);
        }
    }
    cores
}

/// Attributes each cache to the node, or to the cores that have it, by the number of CPUs that
/// share it; as upstream.
fn add_caches(node: &mut Node, files: &MachineFiles) {
    let cores = node.cores.len();
    let Node {
        cores: all, caches, ..
    } = node;
    for core in all {
        let threads = core.thread_ids.len();
        let Some(any) = core.thread_ids.first() else {
            continue;
        };
        let dir = format!("{CPUS}/cpu{any}/cache");
        for index in files.numbered(&dir, "index") {
            let Some((cache, cpus)) = cache(&format!("{dir}/index{index}"), files) else {
                continue;
            };
            let place = if cache.level <= 2 {
                if cpus != threads {
                    continue;
                }
                &mut core.caches
            } else if cpus == cores * threads {
                &mut *caches
            } else {
                &mut core.uncore_caches
            };
            if !place.contains(&cache) {
                place.push(cache);
            }
        }
    }
}

/// A cache, and the number of CPUs that share it.
fn cache(dir: &str, files: &MachineFiles) -> Option<(Cache, usize)> {
    let size = files.text(&format!("{dir}/size"))?;
    let kibibytes: u64 = size.strip_suffix('K')?.parse().ok()?;
    let cache = Cache {
        id: files.value(&format!("{dir}/id"))?,
        size: kibibytes.checked_mul(1024)?,
        kind: files.text(&format!("{dir}/type"))?,
        level: files.value(&format!("{dir}/level"))?,
    };
    let shared = files.text(&format!("{dir}/shared_cpu_map"))?;
    let bits = shared
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit.count_ones() as usize);
    Some((cache, bits.sum()))
}
