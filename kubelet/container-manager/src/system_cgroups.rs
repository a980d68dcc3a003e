//! The cgroups of the node's daemons: the kubelet, the runtime and the other processes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_host::repeatable;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::{
    ContainerManager,
    cgroup::{CgroupError, Hierarchy, processes},
};

/// Between two looks at the cgroups of processes, as upstream.
const PERIOD: Duration = Duration::from_secs(60);
/// Attempts to move all processes, because new ones start meanwhile.
const ATTEMPTS: u32 = 11;

/// Options of the cgroups of the node's daemons, as paths of the cgroup file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemCgroupOptions {
    /// The kubelet is moved to it (`kubeletCgroups`).
    pub kubelet: Option<String>,
    /// The processes in the root cgroup are moved to it, except kernel threads and process 1
    /// (`systemCgroups`).
    pub system: Option<String>,
    /// The runtime is in it (`--runtime-cgroups`).
    pub runtime: Option<String>,
    /// The cgroup of all pods if these have no cgroups of their own (`cgroupRoot`).
    pub root: String,
}

impl SystemCgroupOptions {
    /// Checks the path of a cgroup to which processes are moved.
    ///
    /// # Errors
    /// What the path must be.
    pub fn check(cgroup: &str) -> Result<(), &'static str> {
        let path = below_root(cgroup);
        let is_normal = |component: Component<'_>| matches!(component, Component::Normal(_));
        if path.as_os_str().is_empty() || !path.components().all(is_normal) {
            return Err("must be the path of a cgroup below the root");
        }
        Ok(())
    }
}

/// The cgroups of the node's daemons.
#[derive(Debug)]
pub struct SystemCgroups {
    options: SystemCgroupOptions,
    processes: Arc<Processes>,
}

/// The machine's files about processes.
#[derive(Debug)]
struct Processes {
    /// `/proc`.
    proc: PathBuf,
    /// This process.
    own: i32,
}

impl SystemCgroups {
    /// The cgroups of this machine.
    pub fn new(options: SystemCgroupOptions) -> Self {
        Self {
            options,
            processes: Arc::new(Processes {
                proc: "/proc".into(),
                own: i32::try_from(std::process::id()).unwrap_or_default(),
            }),
        }
    }

    /// The cgroups by the names of upstream's system containers: `kubelet`, by default the cgroup
    /// of this process; `runtime` and `misc` if they are configured; and `pods`. Briefly blocking.
    pub fn paths(&self, manager: Option<&ContainerManager>) -> BTreeMap<&'static str, String> {
        let options = &self.options;
        let own = || self.processes.own_cgroup(Hierarchy::unified_at_root()).ok();
        let kubelet = options.kubelet.clone().or_else(own);
        let pods = match manager {
            Some(manager) => manager.pods.path(manager.cgroups.driver()).ok(),
            None => Some(format!("/{}", options.root.trim_matches('/'))),
        };
        let all = [
            ("kubelet", kubelet),
            ("runtime", options.runtime.clone()),
            ("misc", options.system.clone()),
            ("pods", pods),
        ];
        all.into_iter()
            .filter_map(|(name, cgroup)| Some((name, cgroup?)))
            .collect()
    }

    /// Keeps processes in the cgroups that are configured for them. Returns at once if there are
    /// none.
    pub async fn run(&self) {
        if self.options.kubelet.is_none() && self.options.system.is_none() {
            return;
        }
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut logged = Vec::new();
        loop {
            period.tick().await;
            let (processes, options) = (Arc::clone(&self.processes), self.options.clone());
            let work = move || match Hierarchy::read() {
                Ok(hierarchy) => processes.ensure(&hierarchy, &options),
                Err(error) => vec![error.to_string()],
            };
            let Ok(problems) = repeatable::blocking(work).await else {
                continue;
            };
            for problem in problems.iter().filter(|problem| !logged.contains(*problem)) {
                warn!("{problem}; retrying each minute");
            }
            logged = problems;
        }
    }
}

impl Processes {
    /// Moves the processes that are not where they belong. Returns what failed.
    fn ensure(&self, hierarchy: &Hierarchy, options: &SystemCgroupOptions) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(cgroup) = &options.system
            && let Err(error) = self.move_system(hierarchy, cgroup)
        {
            problems.push(format!(
                "cannot move the machine's processes to systemCgroups (--system-cgroups): {error}"
            ));
        }
        if let Some(cgroup) = &options.kubelet
            && let Err(error) = self.move_kubelet(hierarchy, cgroup)
        {
            problems.push(format!(
                "cannot move the kubelet to kubeletCgroups (--kubelet-cgroups): {error}"
            ));
        }
        problems
    }

    /// Kernel threads stay in the root cgroup: a limit must not stop what others wait for.
    fn move_system(&self, hierarchy: &Hierarchy, cgroup: &str) -> Result<(), CgroupError> {
        let target = relative(cgroup)?;
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            let mut pids = processes::members(hierarchy, Path::new(""))?;
            pids.retain(|pid| *pid != 1 && !self.is_kernel_thread(*pid));
            if pids.is_empty() {
                return Ok(());
            }
            result = Ok(());
            for pid in pids {
                if let Err(error) = processes::add(hierarchy, &target, pid) {
                    result = Err(error);
                }
            }
        }
        result
    }

    fn move_kubelet(&self, hierarchy: &Hierarchy, cgroup: &str) -> Result<(), CgroupError> {
        let target = relative(cgroup)?;
        let namespace = |pid: i32| {
            let path = self.proc.join(format!("{pid}/ns/pid"));
            fs::read_link(&path).map_err(|source| CgroupError::File {
                action: "read",
                path,
                source,
            })
        };
        // The processes of a container stay in its cgroup.
        if namespace(1)? != namespace(self.own)? {
            return Ok(());
        }
        // Without one cgroup for all controllers, it is not in the wanted one.
        let current = self.own_cgroup(hierarchy.is_v2()).unwrap_or_default();
        if relative(&current).ok().as_ref() == Some(&target) {
            return Ok(());
        }
        processes::add(hierarchy, &target, self.own)?;
        info!(
            from = current,
            to = cgroup,
            "moved the kubelet to its cgroup"
        );
        Ok(())
    }

    /// Kernel threads have no executable.
    fn is_kernel_thread(&self, pid: i32) -> bool {
        let path = self.proc.join(format!("{pid}/exe"));
        fs::read_link(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    fn own_cgroup(&self, is_v2: bool) -> Result<String, CgroupError> {
        let path = self.proc.join(format!("{}/cgroup", self.own));
        match fs::read_to_string(&path) {
            Ok(text) => processes::cgroup_of(&text, is_v2),
            Err(source) => Err(CgroupError::File {
                action: "read",
                path,
                source,
            }),
        }
    }
}

fn below_root(cgroup: &str) -> &Path {
    Path::new(cgroup.trim_start_matches('/'))
}

/// The path below the root of each hierarchy, which it cannot leave.
fn relative(cgroup: &str) -> Result<PathBuf, CgroupError> {
    SystemCgroupOptions::check(cgroup).map_err(|rule| CgroupError::Name {
        component: cgroup.to_owned(),
        rule,
    })?;
    Ok(below_root(cgroup).to_owned())
}

#[cfg(test)]
mod tests;
