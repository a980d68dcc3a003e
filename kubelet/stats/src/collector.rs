//! Reads the files of the kernel.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cgroup_stats::{
    Cgroup, CpuRates, CpuTimes, Descriptors, DeviceIo, DeviceNames, HeldFiles, KernelFileReader,
    Memory, Mounts, Pressure, Resource, is_cgroup_of,
};
use kubelet_cri_client::pod_status::SandboxStatus;
use kubelet_host::clock;
use rustix::process::getrlimit;
use tokio::time::Instant;
use tracing::debug;

use crate::{
    file_systems::FileSystem,
    node,
    processes::NetworkProcesses,
    subjects::{CgroupSubject, Depth, PodSubject},
    ulimits::max_open_files,
    usage::{
        CgroupStats, ContainerStats, CpuUsage, Details, MemoryUsage, NodeUsage, PodStats, Tasks,
        Usage,
    },
};

/// Limits are read again after this time: they are the same for most of a cgroup's life. So are the
/// values that only a cgroup's own tasks change, even if none of them seems to have run.
const KNOWN_AGE: Duration = Duration::from_secs(60);
/// A container may have any number of processes; open files are counted up to this number of them.
const MAX_EXAMINED: usize = 128;
/// A pod's cgroup has few others in it. More are not looked through.
const MAX_CHILDREN: usize = 1024;

/// Reads the files of cgroups and processes, and keeps what spares work in the next collection.
#[derive(Debug)]
pub(crate) struct Collector {
    proc: PathBuf,
    mounts: Option<Mounts>,
    reader: KernelFileReader,
    rates: CpuRates,
    networks: NetworkProcesses,
    /// By path.
    cgroups: HashMap<String, Arc<Cgroup>>,
    /// The cgroups of containers and sandboxes, by ID.
    members: HashMap<String, Member>,
    /// By the paths of cgroups, and the IDs of containers.
    known: HashMap<String, Known>,
    /// The files of those that are held open, by the same.
    held: HashMap<String, HeldFiles>,
    /// The files of as many cgroups are held at most.
    max_held: usize,
    devices: DeviceNames,
}

/// A cgroup in a pod's.
#[derive(Clone, Debug)]
struct Member {
    /// Its path below the root of a hierarchy.
    path: String,
    cgroup: Arc<Cgroup>,
}

/// What was read of a cgroup.
#[derive(Debug)]
struct Known {
    /// When everything was read.
    at: Instant,
    /// The CPU time in nanoseconds and the memory, from the last reading of any depth.
    last: Option<(u64, Memory)>,
    /// From the last reading in full.
    details: Option<Arc<Details>>,
    pressures: Option<Pressures>,
}

/// The pressure on each resource. The kernel measures it on all resources or on none.
#[derive(Clone, Copy, Debug, Default)]
struct Pressures {
    cpu: Option<Pressure>,
    memory: Option<Pressure>,
    io: Option<Pressure>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < KNOWN_AGE
    }
}

/// Where processes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    /// In the cgroup itself.
    Own,
    /// In the cgroups below: there are none in a pod's own.
    Below,
}

impl Collector {
    pub(crate) fn new(proc: &Path) -> Self {
        let mounts = Mounts::read(proc);
        if let Err(error) = &mounts {
            debug!(%error, "cannot find the mounts of cgroups");
        }
        Self {
            proc: proc.to_owned(),
            mounts: mounts.ok(),
            reader: KernelFileReader::default(),
            rates: CpuRates::default(),
            networks: NetworkProcesses::new(proc),
            cgroups: HashMap::new(),
            members: HashMap::new(),
            known: HashMap::new(),
            held: HashMap::new(),
            max_held: max_held(),
            devices: DeviceNames::default(),
        }
    }

    /// The usage of the node.
    pub(crate) fn node(&self, depth: Depth) -> io::Result<NodeUsage> {
        let mut node = node::read(&self.proc, depth)?;
        if let Some(cpu) = &mut node.usage.cpu {
            cpu.nano_cores = self.rates.observe("/", Instant::now(), cpu.total);
        }
        Ok(node)
    }

    /// The file system of a path.
    pub(crate) fn file_system(&mut self, path: &Path) -> io::Result<FileSystem> {
        FileSystem::of(path, &mut self.devices)
    }

    /// Forgets everything except these pods and cgroups.
    pub(crate) fn retain(&mut self, pods: &[PodSubject], cgroups: &[CgroupSubject]) {
        let mut ids = HashSet::from(["/"]);
        ids.extend(cgroups.iter().map(|cgroup| cgroup.path.as_str()));
        for pod in pods {
            ids.extend(pod.cgroup.as_deref());
            ids.extend(pod.status.sandboxes.iter().map(|one| one.id.as_str()));
            ids.extend(pod.status.containers.iter().map(|one| one.id.as_str()));
        }
        self.rates.retain(|id| ids.contains(id));
        self.networks.retain(|id| ids.contains(id));
        self.cgroups.retain(|path, _| ids.contains(path.as_str()));
        self.members.retain(|id, _| ids.contains(id.as_str()));
        self.known.retain(|id, _| ids.contains(id.as_str()));
        self.held.retain(|id, _| ids.contains(id.as_str()));
    }

    /// The usage of a cgroup that is not a pod's; `None` if it does not exist.
    pub(crate) fn cgroup(&mut self, subject: CgroupSubject, depth: Depth) -> Option<CgroupStats> {
        let cgroup = self.at(&subject.path)?;
        let usage = self.usage(&subject.path, &cgroup, Processes::Own, depth)?;
        Some(CgroupStats {
            path: subject.path,
            system_container: subject.system_container,
            started_at: match subject.started_at {
                0 => cgroup.created_at().unwrap_or(0),
                known => known,
            },
            usage,
        })
    }

    /// The usage of a pod; `None` if it has no sandbox. Whether all of its running containers were
    /// found is the second value.
    pub(crate) fn pod(&mut self, subject: &PodSubject, depth: Depth) -> Option<(PodStats, bool)> {
        let sandbox = subject.status.sandboxes.first().filter(|it| it.ready)?;
        let mut pod = PodStats {
            pod: Arc::clone(&subject.pod),
            sandbox_id: sandbox.id.clone(),
            started_at: sandbox.created_at,
            cgroup: subject.cgroup.clone().unwrap_or_default(),
            usage: Usage::default(),
            interfaces_at: 0,
            interfaces: Vec::new(),
            processes: None,
            containers: subject.running().map(ContainerStats::unmeasured).collect(),
        };
        let Some(cgroup) = self.at(&pod.cgroup) else {
            return Some((pod, false));
        };
        let Some(usage) = self.usage(&pod.cgroup, &cgroup, Processes::Below, depth) else {
            return Some((pod, false));
        };
        pod.usage = usage;
        self.learn_members(&pod.cgroup, &cgroup, subject, sandbox);
        let mut all_found = true;
        for container in &mut pod.containers {
            let Some(member) = self.members.get(&container.id).cloned() else {
                all_found = false;
                continue;
            };
            container.cgroup = member.path;
            match self.usage(&container.id, &member.cgroup, Processes::Own, depth) {
                Some(usage) => container.usage = usage,
                // It has ended, or its cgroup is elsewhere by now.
                None => {
                    self.members.remove(&container.id);
                    all_found = false;
                }
            }
        }
        if depth >= Depth::Kernel {
            let counts = pod.containers.iter().filter_map(|container| {
                let details = container.usage.details.as_ref()?;
                details.tasks.processes
            });
            pod.processes = Some(counts.sum());
            if !sandbox.host_network {
                pod.interfaces_at = now();
                pod.interfaces = self.interfaces(sandbox, &pod.containers);
            }
        }
        Some((pod, all_found))
    }

    /// The cgroup with this path; `None` for a pod without one.
    fn at(&mut self, path: &str) -> Option<Arc<Cgroup>> {
        if path.is_empty() {
            return None;
        }
        if let Some(known) = self.cgroups.get(path) {
            return Some(Arc::clone(known));
        }
        let cgroup = Arc::new(self.mounts.as_ref()?.cgroup(Path::new(path)));
        self.cgroups.insert(path.to_owned(), Arc::clone(&cgroup));
        Some(cgroup)
    }

    fn interfaces(
        &mut self,
        sandbox: &SandboxStatus,
        containers: &[ContainerStats],
    ) -> Vec<cgroup_stats::Interface> {
        let known = &self.members;
        let ids = std::iter::once(sandbox.id.as_str());
        let members = ids
            .chain(containers.iter().map(|container| container.id.as_str()))
            .filter_map(|id| Some((id, &*known.get(id)?.cgroup)));
        self.networks
            .interfaces(&mut self.reader, &sandbox.id, members)
    }

    /// Finds the cgroups of a pod's sandbox and containers. Their names have the IDs.
    fn learn_members(
        &mut self,
        path: &str,
        pod: &Cgroup,
        subject: &PodSubject,
        sandbox: &SandboxStatus,
    ) {
        let unknown: Vec<&str> = subject
            .running()
            .map(|container| container.id.as_str())
            .chain([sandbox.id.as_str()])
            .filter(|id| !self.members.contains_key(*id))
            .collect();
        if unknown.is_empty() {
            return;
        }
        let Some(Ok(entries)) = pod.processes().map(fs::read_dir) else {
            return;
        };
        for entry in entries.flatten().take(MAX_CHILDREN) {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if let Some(id) = unknown.iter().find(|id| is_cgroup_of(&name, id)) {
                let member = Member {
                    path: format!("{path}/{name}"),
                    cgroup: Arc::new(pod.child(&name)),
                };
                self.members.insert((*id).to_owned(), member);
            }
        }
    }

    /// The usage of a cgroup; `None` if it does not exist.
    fn usage(
        &mut self,
        id: &str,
        cgroup: &Cgroup,
        processes: Processes,
        depth: Depth,
    ) -> Option<Usage> {
        let at = now();
        let known = self.known.get(id).filter(|known| known.is_fresh());
        if !self.held.contains_key(id) && self.held.len() < self.max_held {
            self.held.insert(id.to_owned(), HeldFiles::default());
        }
        let mut held = self.held.get_mut(id);
        let times = match depth {
            Depth::CpuAndMemory => {
                let total = self.reader.cpu(cgroup, held.as_deref_mut());
                total.map(|total| CpuTimes {
                    total,
                    ..CpuTimes::default()
                })
            }
            Depth::Kernel | Depth::Prompt | Depth::Everything => {
                let details = known.and_then(|known| known.details.as_ref());
                let last = details.map(|details| details.cpu_times);
                let held = held.as_deref_mut();
                self.reader.cpu_times(cgroup, held, last)
            }
        };
        // If none of its tasks has run since.
        let idle = known.and_then(|known| {
            let (total, memory) = known.last?;
            (times?.total == total).then_some((memory, known.pressures))
        });
        let memory = match idle {
            Some((last, _)) => self.reader.memory_of_idle(cgroup, held, last),
            None => self.reader.memory(cgroup, held),
        };
        if times.is_none() && memory.is_none() {
            self.held.remove(id);
            return None;
        }
        let last = times.map(|times| times.total).zip(memory);
        match self.known.get_mut(id).filter(|known| known.is_fresh()) {
            Some(known) => known.last = last,
            None => {
                let known = Known {
                    at: Instant::now(),
                    last,
                    details: None,
                    pressures: None,
                };
                self.known.insert(id.to_owned(), known);
            }
        }
        let mut usage = Usage {
            cpu: times.map(|times| CpuUsage {
                at,
                total: times.total,
                nano_cores: self.rates.observe(id, Instant::now(), times.total),
                pressure: None,
            }),
            memory: memory.map(|memory| MemoryUsage::new(at, &memory)),
            swap: memory.and_then(|memory| memory.swap),
            ..Usage::default()
        };
        if depth == Depth::CpuAndMemory {
            return Some(usage);
        }
        let last = idle.and_then(|(_, pressures)| pressures);
        let pressures = self.pressures(cgroup, last);
        if let Some(cpu) = &mut usage.cpu {
            cpu.pressure = pressures.cpu;
        }
        if let Some(memory) = &mut usage.memory {
            memory.pressure = pressures.memory;
        }
        usage.io_pressure = pressures.io;
        if let Some(known) = self.known.get_mut(id) {
            known.pressures = Some(pressures);
        }
        let details = self.details(id, cgroup, processes, (times, memory));
        usage.details = Some(details);
        Some(usage)
    }

    /// `last` is the pressure on a cgroup none of whose tasks has run since. A task that waits through
    /// and through is seen at the next reading in full.
    fn pressures(&mut self, cgroup: &Cgroup, last: Option<Pressures>) -> Pressures {
        let mut read = |resource, of: fn(Pressures) -> Option<Pressure>| {
            let last = last.and_then(of);
            let over = last.filter(Pressure::is_over);
            over.or_else(|| self.reader.pressure(cgroup, resource))
        };
        let Some(of_cpu) = read(Resource::Cpu, |it| it.cpu) else {
            return Pressures::default();
        };
        Pressures {
            cpu: Some(of_cpu),
            memory: read(Resource::Memory, |it| it.memory),
            io: read(Resource::Io, |it| it.io),
        }
    }

    /// Everything that is not read at each depth.
    fn details(
        &mut self,
        id: &str,
        cgroup: &Cgroup,
        processes: Processes,
        (cpu_times, memory): (Option<CpuTimes>, Option<Memory>),
    ) -> Arc<Details> {
        let known = self.known.get_mut(id).and_then(|it| it.details.take());
        let memory = memory.unwrap_or_default();
        let details = match known {
            // None of its tasks has run since: they are the same, and have the same open files.
            Some(known) if Some(known.cpu_times) == cpu_times => {
                // The kernel writes on behalf of a cgroup later only in v2.
                let io = cgroup.v1("blkio").is_none().then(|| self.io(cgroup));
                let io = io.filter(|io| *io != known.io);
                if io.is_none() && known.memory == memory {
                    known
                } else {
                    let known = Arc::unwrap_or_clone(known);
                    Arc::new(Details {
                        memory,
                        io: io.unwrap_or(known.io),
                        ..known
                    })
                }
            }
            known => {
                let known = known.map(|it| (it.cpu_limits, it.memory_limits, it.tasks.threads_max));
                let (cpu_limits, memory_limits, threads_max) = known.unwrap_or_else(|| {
                    (
                        self.reader.cpu_limits(cgroup),
                        self.reader.memory_limits(cgroup),
                        self.reader.threads_max(cgroup),
                    )
                });
                Arc::new(Details {
                    cpu_times: cpu_times.unwrap_or_default(),
                    memory,
                    memory_events: self.reader.memory_events(cgroup),
                    tasks: Tasks {
                        threads_max,
                        ..self.tasks(cgroup, processes)
                    },
                    io: self.io(cgroup),
                    cpu_limits,
                    memory_limits,
                })
            }
        };
        if let Some(known) = self.known.get_mut(id) {
            known.details = Some(Arc::clone(&details));
        }
        details
    }

    fn io(&mut self, cgroup: &Cgroup) -> Vec<(String, DeviceIo)> {
        let io = self.reader.io(cgroup).into_iter();
        io.map(|io| (self.devices.path(&io.device).to_owned(), io))
            .collect()
    }

    fn tasks(&mut self, cgroup: &Cgroup, processes: Processes) -> Tasks {
        if processes == Processes::Below {
            return Tasks {
                processes: Some(0),
                threads: self.reader.threads(cgroup),
                ..Tasks::default()
            };
        }
        let found = self.reader.tasks(cgroup);
        let pids = found.processes.unwrap_or_default();
        let few = (pids.len() <= MAX_EXAMINED).then_some(&pids);
        Tasks {
            processes: Some(pids.len() as u64),
            threads: found.threads,
            threads_max: None,
            descriptors: few.and_then(|pids| {
                let opened = pids.iter().map(|pid| {
                    let directory = self.proc.join(pid.to_string()).join("fd");
                    fs::File::open(directory).map(OwnedFd::from)
                });
                Descriptors::total(opened.filter_map(Result::ok))
            }),
            max_open_files: pids
                .iter()
                .min()
                .and_then(|pid| max_open_files(&self.proc, *pid)),
        }
    }
}

/// The number of cgroups whose files take a quarter of the open files that this process may have.
fn max_held() -> usize {
    let limit = getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX) / 4 / HeldFiles::MOST
}

/// Nanoseconds since the epoch.
fn now() -> i64 {
    i64::try_from(clock::now().as_nanosecond()).unwrap_or_default()
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
