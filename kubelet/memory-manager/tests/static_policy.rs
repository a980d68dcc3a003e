//! Containers that come and go under the static policy, compared with Kubernetes 1.36.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kubelet_machine_info::{HugePages, Node};
use kubelet_memory_manager::{
    Amounts, Block, MachineMemory, MemoryRequest, MemoryState, MemoryTable, NodeMemory, Reserved,
    StaticPolicy,
};
use kubelet_topology_manager::{Policy, PolicyName, TopologyHint};
use proptest::{collection::vec, prelude::*, sample::select};

const HUGE: &str = "hugepages-2Mi";

/// A node with the policies. Its policy starts on a machine that is read from the table, where huge
/// pages have no size.
struct Manager {
    policy: StaticPolicy,
    topology: Option<Policy>,
    state: MemoryState,
}

fn table(total: u64, reserved: u64, other: u64) -> MemoryTable {
    let allocatable = total - reserved - other;
    MemoryTable {
        total,
        system_reserved: reserved,
        allocatable,
        reserved: 0,
        free: allocatable,
    }
}

impl Manager {
    fn new(nodes: &[[u64; 3]], topology: &str) -> Self {
        let machine: MachineMemory = (0..)
            .zip(nodes)
            .map(|(id, [total, huge, reserved])| {
                let node = NodeMemory {
                    number_of_assignments: 0,
                    memory_map: [
                        ("memory".to_owned(), table(*total, *reserved, *huge)),
                        (HUGE.to_owned(), table(*huge, 0, 0)),
                    ]
                    .into(),
                    cells: vec![id],
                };
                (id, node)
            })
            .collect();
        let numa: Vec<Node> = machine
            .keys()
            .map(|id| Node {
                node_id: *id,
                ..Node::default()
            })
            .collect();
        let name = PolicyName::parse(topology);
        assert_eq!(name.is_none(), topology == "none", "{topology}");
        let reserved: Reserved = [(0, [("memory".to_owned(), 1)].into())].into();
        Self {
            policy: StaticPolicy::new(&numa, &reserved).unwrap(),
            topology: name.map(|name| Policy::new(name, &numa, false)),
            state: MemoryState {
                machine,
                ..MemoryState::default()
            },
        }
    }

    /// The memory of a container, or why it has none.
    fn request(&mut self, pod: &str, container: &str, amounts: &Amounts) -> Result<String, String> {
        let has_init = self.state.of(pod, "init").is_some();
        let request = MemoryRequest {
            pod,
            container,
            amounts,
            ends_first: container == "init",
            after: if has_init { &["init"] } else { &[] },
        };
        let mut hint = TopologyHint {
            nodes: None,
            preferred: false,
        };
        if let Some(topology) = &self.topology {
            let hints = self.policy.hints(&self.state, request);
            let (merged, admits) = topology.merge(&hints);
            if !admits {
                return Err("refused".to_owned());
            }
            hint = merged;
        }
        let allocated = self.policy.allocate(&mut self.state, request, hint);
        allocated.map_err(|error| format!("error: {error}"))?;
        let mut found = blocks(self.state.of(pod, container).unwrap());
        if has_init && container == "app" {
            found = format!(
                "{found} init {}",
                blocks(self.state.of(pod, "init").unwrap())
            );
        }
        Ok(found)
    }

    /// The nodes as the table has them.
    fn nodes(&self) -> String {
        let nodes = self.state.machine.values().map(|node| {
            let free = |resource: &str| node.memory_map[resource].free;
            format!(
                "{}*{}={}/{}",
                node.number_of_assignments,
                joined(&node.cells),
                free(HUGE),
                free("memory")
            )
        });
        nodes.collect::<Vec<_>>().join(" ")
    }
}

fn joined(nodes: &[u32]) -> String {
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    nodes.join("+")
}

fn blocks(blocks: &[Block]) -> String {
    let texts: Vec<String> = blocks
        .iter()
        .map(|block| {
            let Block {
                numa_affinity,
                resource,
                size,
            } = block;
            format!("{resource}:{size}@{}", joined(numa_affinity))
        })
        .collect();
    texts.join(",")
}

fn amounts(text: &str) -> Amounts {
    let amounts = text.split(',').map(|amount| {
        let (resource, size) = amount.split_once(':').unwrap();
        (resource.to_owned(), size.parse().unwrap())
    });
    amounts.collect()
}

#[test]
fn containers_have_the_memory_that_upstream_gives_them() {
    let mut manager: Option<Manager> = None;
    let mut different = Vec::new();
    let (mut machine, mut count) = ("", 0);
    let rows = include_str!("static_policy.tsv").lines();
    for row in rows.filter(|row| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let found = match fields[..] {
            ["machine", nodes, topology] => {
                let nodes = nodes.split(' ').map(|node| {
                    let mut numbers = node.split('/').map(|number| number.parse().unwrap());
                    [(); 3].map(|()| numbers.next().unwrap())
                });
                let nodes: Vec<[u64; 3]> = nodes.collect();
                (machine, manager) = (row, Some(Manager::new(&nodes, topology)));
                continue;
            }
            ["request", pod, container, text, ..] => {
                let manager = manager.as_mut().unwrap();
                let found = manager.request(pod, container, &amounts(text));
                let found = found.unwrap_or_else(|error| error);
                let nodes = manager.nodes();
                format!("request\t{pod}\t{container}\t{text}\t{found}\t{nodes}")
            }
            ["release", pod, container, _] => {
                let manager = manager.as_mut().unwrap();
                manager.policy.release(&mut manager.state, pod, container);
                format!("release\t{pod}\t{container}\t{}", manager.nodes())
            }
            _ => panic!("{row}"),
        };
        if found != row {
            different.push(format!("{machine}\n  {row}\n  {found}"));
        }
        count += 1;
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(count >= 60, "{count} rows");
}

const MEBIBYTE: u64 = 1 << 20;

/// A machine with `count` NUMA nodes of 96 MiB, 16 of them huge pages.
fn real(count: u32, topology: &str) -> Manager {
    let nodes: Vec<Node> = (0..count)
        .map(|node_id| Node {
            node_id,
            memory: 96 * MEBIBYTE,
            hugepages: vec![HugePages {
                page_size: 2048,
                num_pages: 8,
            }],
            ..Node::default()
        })
        .collect();
    let reserved = [(0, [("memory".to_owned(), 4 * MEBIBYTE)].into())].into();
    let mut manager = Manager::new(&vec![[1, 0, 0]; count as usize], topology);
    manager.policy = StaticPolicy::new(&nodes, &reserved).unwrap();
    manager.state = MemoryState::default();
    manager.policy.start(&mut manager.state).unwrap();
    manager
}

#[test]
fn a_machine_has_what_the_system_and_huge_pages_leave() {
    let manager = real(2, "none");
    let tables = |id: u32| {
        let map = &manager.state.machine[&id].memory_map;
        [map["memory"], map[HUGE]].map(|table| (table.total, table.allocatable))
    };
    let huge = (16 * MEBIBYTE, 16 * MEBIBYTE);
    assert_eq!(tables(0), [(96 * MEBIBYTE, 76 * MEBIBYTE), huge]);
    assert_eq!(tables(1), [(96 * MEBIBYTE, 80 * MEBIBYTE), huge]);
    assert!(StaticPolicy::new(&[], &Reserved::new()).is_err());
}

#[test]
fn another_state_is_refused() {
    let mut manager = real(2, "none");
    let memory = amounts(&format!("memory:{}", 8 * MEBIBYTE));
    manager.request("p", "app", &memory).unwrap();
    let change = |edit: &dyn Fn(&mut MemoryState)| {
        let mut state = manager.state.clone();
        edit(&mut state);
        manager.policy.start(&mut state)
    };
    assert_eq!(change(&|_| ()), Ok(()));
    for (edit, says) in [
        (
            &(|state: &mut MemoryState| state.machine.clear()) as &dyn Fn(&mut MemoryState),
            "the machine has none",
        ),
        (
            &|state| drop(state.machine.remove(&1)),
            "those of the state [0]",
        ),
        (
            &|state| {
                state
                    .assignments
                    .get_mut("p")
                    .unwrap()
                    .get_mut("app")
                    .unwrap()[0]
                    .numa_affinity = vec![7]
            },
            "has memory of NUMA nodes [7]",
        ),
        (&|state| state.assignments.clear(), "NUMA node 0 is"),
        (
            &|state| {
                state
                    .machine
                    .get_mut(&1)
                    .unwrap()
                    .memory_map
                    .get_mut("memory")
                    .unwrap()
                    .total += 1
            },
            "memory of NUMA node 1 is",
        ),
    ] {
        let error = change(edit).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

proptest! {
    /// What is given is taken from the machine and comes back; a container that is promised
    /// one node has it.
    #[test]
    fn memory_is_given_once(
        nodes in select(vec![1_u32, 2, 4, 8]),
        topology in select(vec!["none", "best-effort", "restricted", "single-numa-node"]),
        steps in vec((0_usize..5, any::<bool>(), 1_u64..120, 0_u64..12), 1..20),
    ) {
        let mut manager = real(nodes, topology);
        let empty = manager.state.clone();
        for (pod, comes, memory, huge) in steps {
            let pod = format!("pod{pod}");
            if comes && manager.state.of(&pod, "app").is_none() {
                let mut wanted = amounts(&format!("memory:{}", memory * MEBIBYTE));
                if huge > 0 {
                    wanted.insert(HUGE.to_owned(), huge * MEBIBYTE);
                }
                if manager.request(&pod, "app", &wanted).is_ok() {
                    let given = manager.state.of(&pod, "app").unwrap();
                    let sizes = given.iter().map(|block| (block.resource.clone(), block.size));
                    prop_assert_eq!(sizes.collect::<Amounts>(), wanted);
                    if topology == "single-numa-node" {
                        prop_assert!(given.iter().all(|block| block.numa_affinity.len() == 1));
                    }
                }
            } else {
                manager.policy.release(&mut manager.state, &pod, "app");
            }
            let state = &manager.state;
            for node in state.machine.values() {
                for table in node.memory_map.values() {
                    prop_assert_eq!(table.free + table.reserved, table.allocatable);
                }
            }
            for resource in ["memory", HUGE] {
                let reserved = state.machine.values().map(|node| node.memory_map[resource].reserved);
                let blocks = state.assignments.values().flat_map(|it| it.values()).flatten();
                let given = blocks.filter(|block| block.resource == resource).map(|block| block.size);
                prop_assert_eq!(reserved.sum::<u64>(), given.sum::<u64>());
            }
            let mut read = MemoryState::parse(state.to_file("Static").unwrap().as_bytes(), "Static").unwrap();
            prop_assert_eq!(&read, state);
            prop_assert_eq!(manager.policy.start(&mut read), Ok(()));
        }
        for pod in 0..5 {
            manager.policy.release(&mut manager.state, &format!("pod{pod}"), "app");
        }
        prop_assert_eq!(manager.state, empty);
    }
}
