//! What the statistics are about.

use std::sync::Arc;

use kubelet_container_manager::PodCgroups;
use kubelet_pod_spec::identity::PodUid;
use kubelet_stats::{CgroupSubject, PodSubject, Subjects, SystemContainer};

use crate::{pleg::PodCache, pod::manager::PodManager};

/// The pods of the node, and the cgroups above theirs.
#[derive(Debug)]
pub(super) struct NodeSubjects {
    pub(super) pods: Arc<PodManager>,
    pub(super) cache: Arc<PodCache>,
    pub(super) cgroups: Arc<PodCgroups>,
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
        let Some(manager) = self.cgroups.manager() else {
            return Vec::new();
        };
        let kinds = [Some(SystemContainer::Pods), None, None];
        let paths = manager.paths_of_pods().into_iter();
        paths
            .zip(kinds)
            .filter_map(|(path, system_container)| {
                Some(CgroupSubject {
                    path: path?,
                    system_container,
                    started_at: 0,
                })
            })
            .collect()
    }
}
