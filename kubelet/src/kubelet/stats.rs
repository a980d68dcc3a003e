//! What the statistics are about.

use std::sync::Arc;

use kubelet_container_manager::{PodCgroups, SystemCgroups};
use kubelet_pod_spec::identity::PodUid;
use kubelet_stats::{CgroupSubject, PodSubject, Subjects, SystemContainer};

use crate::{pleg::PodCache, pod::manager::PodManager};

/// The pods of the node, and the cgroups above theirs.
#[derive(Debug)]
pub(super) struct NodeSubjects {
    pub(super) pods: Arc<PodManager>,
    pub(super) cache: Arc<PodCache>,
    pub(super) cgroups: Arc<PodCgroups>,
    pub(super) system_cgroups: Arc<SystemCgroups>,
    /// When the kubelet was started, in nanoseconds since the epoch.
    pub(super) started_at: i64,
}

impl Subjects for NodeSubjects {
    fn pods(&self) -> Vec<PodSubject> {
        let pods = self.pods.pods().into_iter();
        pods.filter_map(|pod| {
            let status = self.cache.get(&PodUid::of(&pod)).ok()?;
            let cgroup = self.cgroups.parent_of_containers(&pod).ok();
            Some(PodSubject {
                cgroup: cgroup.filter(|path| !path.is_empty()),
                status,
                pod,
            })
        })
        .collect()
    }

    fn cgroups(&self) -> Vec<CgroupSubject> {
        let manager = self.cgroups.manager();
        let system = self.system_cgroups.paths(manager);
        let mut subjects = Vec::new();
        for kind in SystemContainer::ALL {
            let Some(path) = system.get(kind.as_str()) else {
                continue;
            };
            subjects.push(CgroupSubject {
                path: path.clone(),
                system_container: Some(kind),
                started_at: match kind {
                    SystemContainer::Kubelet => self.started_at,
                    _ => 0,
                },
            });
        }
        let classes = manager.into_iter().flat_map(|it| it.paths_of_classes());
        subjects.extend(classes.flatten().map(|path| CgroupSubject {
            path,
            system_container: None,
            started_at: 0,
        }));
        subjects
    }
}
