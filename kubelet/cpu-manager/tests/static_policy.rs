//! Containers that come and go under the static policy, compared with Kubernetes 1.36.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod machines;

use std::collections::BTreeMap;

use kubelet_cpu_manager::{
    CpuRequest, CpuState, CpuTopology, Level, OptionGates, StaticOptions, StaticPolicy,
};
use kubelet_host::cpu_set::CpuSet;
use kubelet_machine_info::Node;
use kubelet_topology_manager::{NodeMask, Policy, PolicyName};
use machines::{MACHINES, TOPOLOGIES};
use proptest::{collection::vec, prelude::*, sample::select};

const GATES: OptionGates = OptionGates {
    alpha: true,
    beta: true,
};

/// A node with the policies.
struct Manager {
    policy: StaticPolicy,
    topology: Option<Policy>,
    state: CpuState,
}

impl Manager {
    fn new(machine: &str, options: &[&str], topology: &str, reserved: usize) -> Self {
        let options = options
            .iter()
            .map(|name| ((*name).to_owned(), "true".to_owned()));
        let options = StaticOptions::parse(&options.collect(), GATES).unwrap();
        let cpus: &CpuTopology = &TOPOLOGIES[machine];
        let policy = StaticPolicy::new(cpus.clone(), CpuSet::EMPTY, reserved, options).unwrap();
        let name = PolicyName::parse(topology);
        assert_eq!(name.is_none(), topology == "none", "{topology}");
        let nodes = cpus.all(Level::NumaNode).into_iter();
        let nodes: Vec<Node> = nodes
            .map(|node_id| Node {
                node_id,
                ..Node::default()
            })
            .collect();
        let mut state = CpuState::default();
        policy.start(&mut state).unwrap();
        Self {
            policy,
            topology: name.map(|name| Policy::new(name, &nodes, false)),
            state,
        }
    }

    /// The CPUs of a container, or why it has none.
    fn request(&mut self, pod: &str, container: &str, cpus: usize) -> Result<CpuSet, String> {
        let request = CpuRequest {
            pod,
            container,
            cpus,
            ends_first: container == "init",
        };
        let mut nodes: Option<NodeMask> = None;
        if let Some(topology) = &self.topology {
            let hints = self.policy.hints(&self.state, request);
            let (hint, admits) = topology.merge(&[hints]);
            if !admits {
                return Err("refused".to_owned());
            }
            nodes = hint.nodes;
        }
        let allocated = self.policy.allocate(&mut self.state, request, nodes);
        allocated.map_err(|error| format!("error: {error}"))?;
        Ok(self.state.of(pod, container).unwrap().clone())
    }
}

/// The table has no machine whose cores differ in size: upstream takes CPUs of such cores that
/// another container has.
#[test]
fn containers_have_the_cpus_that_upstream_gives_them() {
    let mut manager: Option<Manager> = None;
    let mut different = Vec::new();
    let (mut machine, mut count) = ("", 0);
    let rows = include_str!("static_policy.tsv").lines();
    for row in rows.filter(|row| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let found = match fields[..] {
            ["machine", name, options, topology, reserved, cpus] => {
                let options: Vec<&str> = options.split('+').filter(|it| !it.is_empty()).collect();
                let made = Manager::new(name, &options, topology, reserved.parse().unwrap());
                let all = TOPOLOGIES[name].cpus();
                let found = all.difference(&made.policy.allocatable());
                assert_eq!(found, cpus.parse().unwrap(), "{row}");
                (machine, manager) = (row, Some(made));
                continue;
            }
            ["request", pod, container, cpus, ..] => {
                let manager = manager.as_mut().unwrap();
                let found = manager.request(pod, container, cpus.parse().unwrap());
                let found = found.map_or_else(|error| error, |cpus| cpus.to_string());
                let shared = &manager.state.shared;
                format!("request\t{pod}\t{container}\t{cpus}\t{found}\t{shared}")
            }
            ["release", pod, container, _] => {
                let manager = manager.as_mut().unwrap();
                manager.policy.release(&mut manager.state, pod, container);
                format!("release\t{pod}\t{container}\t{}", manager.state.shared)
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

/// A state that is not of this machine, or not of these settings.
#[test]
fn another_state_is_refused() {
    let strict = &["strict-cpu-reservation"][..];
    for (options, shared, exclusive, says) in [
        (strict, "0,2-7", "1", "the reserved CPUs 0 are among"),
        (&[], "2-7", "1", "not all of the reserved CPUs 0"),
        (&[], "0-7", "1", "container c of pod p has CPUs 1"),
        (
            &[],
            "0,2-6",
            "1",
            "the CPUs of the machine are 0-7, and those of the state 0-6",
        ),
        (&[], "0,2-8", "1", "those of the state 0-8"),
    ] {
        let manager = Manager::new("core-i7-8650u", options, "none", 1);
        let of_pod = [("c".to_owned(), exclusive.parse().unwrap())].into();
        let mut state = CpuState {
            shared: shared.parse().unwrap(),
            exclusive: [("p".to_owned(), of_pod)].into(),
        };
        let error = manager.policy.start(&mut state).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

/// With strict reservation, containers may have all other CPUs; upstream's kubelet does not start
/// again then.
#[test]
fn no_cpu_may_be_left_to_share() {
    let mut manager = Manager::new("core-i7-8650u", &["strict-cpu-reservation"], "none", 1);
    let cpus = manager.request("p", "app", 7).unwrap();
    assert_eq!(cpus, "1-7".parse().unwrap());
    let mut state = manager.state.clone();
    assert_eq!(manager.policy.start(&mut state), Ok(()));
    assert_eq!(state, manager.state);
}

proptest! {
    /// No CPU is given twice, nor a reserved one; what is released is shared again; a container
    /// that is promised one NUMA node or whole cores has them.
    #[test]
    fn each_cpu_has_one_owner(
        machine in select(MACHINES.to_vec()),
        options in select(vec![
            &[][..],
            &["full-pcpus-only"],
            &["distribute-cpus-across-numa"],
            &["distribute-cpus-across-cores"],
            &["strict-cpu-reservation"],
            &["prefer-align-cpus-by-uncorecache"],
            &["full-pcpus-only", "distribute-cpus-across-numa"],
        ]),
        topology in select(vec!["none", "best-effort", "restricted", "single-numa-node"]),
        reserved in 1_usize..4,
        steps in vec((0_usize..6, any::<bool>(), 1_usize..24), 1..30),
    ) {
        let mut manager = Manager::new(machine.0, options, topology, reserved);
        let places = &TOPOLOGIES[machine.0];
        let all = manager.state.shared.clone();
        for (pod, comes, cpus) in steps {
            let pod = format!("pod{pod}");
            if comes && manager.state.of(&pod, "app").is_none() {
                if let Ok(given) = manager.request(&pod, "app", cpus) {
                    prop_assert_eq!(given.len(), cpus);
                    let of = |level| {
                        let places = places.places_of(&given);
                        let mut ids: Vec<u32> = places.values().map(|place| place.at(level)).collect();
                        ids.sort_unstable();
                        ids.dedup();
                        ids
                    };
                    if topology == "single-numa-node" {
                        prop_assert_eq!(of(Level::NumaNode).len(), 1);
                    }
                    if options.contains(&"full-pcpus-only") && machine.0 != "core-i9-12900k" {
                        prop_assert_eq!(&places.cpus_in(Level::Core, &of(Level::Core)), &given);
                    }
                }
            } else {
                manager.policy.release(&mut manager.state, &pod, "app");
            }
            let state = &manager.state;
            let mut owners: BTreeMap<u32, usize> = BTreeMap::new();
            let exclusive = state.exclusive.values().flat_map(|containers| containers.values());
            for cpus in exclusive {
                prop_assert!(cpus.is_subset(&manager.policy.allocatable()));
                for cpu in cpus.iter() {
                    *owners.entry(cpu).or_default() += 1;
                }
            }
            for cpu in state.shared.iter() {
                *owners.entry(cpu).or_default() += 1;
            }
            prop_assert!(owners.values().all(|count| *count == 1), "{:?}", owners);
            prop_assert_eq!(owners.into_keys().collect::<CpuSet>(), all.clone());
            let mut state = CpuState::parse(state.to_file("static").unwrap().as_bytes(), "static").unwrap();
            prop_assert_eq!(&state, &manager.state);
            prop_assert_eq!(manager.policy.start(&mut state), Ok(()));
        }
    }
}
