//! The cgroups of single pods.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_pod_spec::{cpu::MIN_SHARES, identity::PodUid};

use crate::{
    ContainerManager, Leftovers, POD,
    cgroup::{CgroupConfig, CgroupError, CgroupName, CgroupState},
    pod_config,
};

/// Whether a pod has its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCgroup {
    /// It has.
    Present,
    /// It has, but without some controllers.
    Incomplete,
    /// It never had one while this process ran: it is new, or was started without cgroups of pods.
    Absent,
    /// It had one, which another program removed.
    Removed,
}

impl ContainerManager {
    fn name(&self, uid: &PodUid, spec: Option<&PodSpec>) -> Result<CgroupName, CgroupError> {
        self.class(spec).child(&format!("{POD}{uid}"))
    }

    /// The path of the pod's cgroup in a hierarchy; empty for a pod that has none.
    ///
    /// # Errors
    /// The pod's UID cannot be part of a cgroup's name.
    pub fn parent_of_containers(&self, pod: &Pod) -> Result<String, CgroupError> {
        if self.without.lock().contains(&PodUid::of(pod)) {
            return Ok(String::new());
        }
        let name = self.name(&PodUid::of(pod), pod.spec.as_ref())?;
        name.path(self.cgroups.driver())
    }

    /// Looks whether the pod has its cgroup.
    ///
    /// # Errors
    /// The pod's UID cannot be part of a cgroup's name.
    pub async fn find(&self, pod: &Pod) -> Result<PodCgroup, CgroupError> {
        let uid = PodUid::of(pod);
        let name = self.name(&uid, pod.spec.as_ref())?;
        let state = self.cgroups.state(&name).await?;
        let mut known = self.known.lock();
        Ok(match state {
            CgroupState::Absent if known.contains(&uid) => PodCgroup::Removed,
            CgroupState::Absent => PodCgroup::Absent,
            CgroupState::Complete => {
                known.insert(uid);
                PodCgroup::Present
            }
            CgroupState::Incomplete(_) => {
                known.insert(uid);
                PodCgroup::Incomplete
            }
        })
    }

    /// Leaves a running pod without a cgroup, until [`create`](Self::create). Returns whether that
    /// is new.
    pub fn leave_without(&self, uid: &PodUid) -> bool {
        self.without.lock().insert(uid.clone())
    }

    /// Creates the cgroup of a pod, or completes it, with the limits of its spec.
    ///
    /// # Errors
    /// It cannot be created or limited.
    pub async fn create(&self, pod: &Pod) -> Result<(), CgroupError> {
        let uid = PodUid::of(pod);
        let name = self.name(&uid, pod.spec.as_ref())?;
        self.cgroups.create(&name, &self.limits(pod)).await?;
        self.without.lock().remove(&uid);
        self.known.lock().insert(uid);
        Ok(())
    }

    /// Raises the CPU and memory limits of the pod's cgroup to those of its spec, before its
    /// containers get more. None is lowered. Does nothing for a pod without cgroup.
    ///
    /// # Errors
    /// The kernel refuses a limit, or the cgroup is gone.
    pub async fn raise_limits(&self, pod: &Pod) -> Result<(), CgroupError> {
        let uid = PodUid::of(pod);
        if self.without.lock().contains(&uid) {
            return Ok(());
        }
        let name = self.name(&uid, pod.spec.as_ref())?;
        let now = self.cgroups.limits(&name).await?;
        let raised = self.limits(pod).cpu_and_memory().at_least(&now);
        self.cgroups.update(&name, &raised).await
    }

    /// Sets the CPU and memory limits of the pod's cgroup to those of its spec, after its
    /// containers have got less. Does nothing for a pod without cgroup.
    ///
    /// # Errors
    /// The kernel refuses a limit, or the cgroup is gone.
    pub async fn settle_limits(&self, pod: &Pod) -> Result<(), CgroupError> {
        let uid = PodUid::of(pod);
        if self.without.lock().contains(&uid) {
            return Ok(());
        }
        let name = self.name(&uid, pod.spec.as_ref())?;
        let limits = self.limits(pod).cpu_and_memory();
        self.cgroups.update(&name, &limits).await
    }

    fn limits(&self, pod: &Pod) -> CgroupConfig {
        let none = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&none);
        let mut options = self.options.pods;
        options.cpu_cfs_quota &= !self.managers.is_pod_without_quota(&PodUid::of(pod));
        pod_config::of_pod(spec, &options, self.cgroups.is_v2())
    }

    /// Removes the cgroup of a pod that has ended, and kills what is still in it. Does nothing for a
    /// pod whose UID cannot be part of a cgroup's name, which never had one.
    ///
    /// # Errors
    /// A process does not end, or the cgroup cannot be removed.
    pub async fn remove(&self, pod: &Pod) -> Result<(), CgroupError> {
        let uid = PodUid::of(pod);
        let name = self.name(&uid, pod.spec.as_ref());
        if let Ok(name) = name
            && name.path(self.cgroups.driver()).is_ok()
        {
            self.cgroups.remove(&name).await?;
        }
        self.forget(&uid);
        Ok(())
    }

    fn forget(&self, uid: &PodUid) {
        self.known.lock().remove(uid);
        self.without.lock().remove(uid);
    }

    /// The cgroups of pods, whether these exist or not.
    ///
    /// # Errors
    /// The cgroups cannot be listed.
    pub async fn all(&self) -> Result<Leftovers, CgroupError> {
        let mut found = Leftovers::new();
        for class in [&self.pods, &self.burstable, &self.best_effort] {
            for component in self.cgroups.children(class).await? {
                if let Some(uid) = component.strip_prefix(POD).and_then(PodUid::parse)
                    && let Ok(name) = class.child(&component)
                {
                    found.insert(uid, name);
                }
            }
        }
        Ok(found)
    }

    /// Removes one of [`all`](Self::all) cgroups, and kills what is still in it.
    ///
    /// # Errors
    /// A process does not end, or the cgroup cannot be removed.
    pub async fn remove_leftover(
        &self,
        uid: &PodUid,
        name: &CgroupName,
    ) -> Result<(), CgroupError> {
        self.cgroups.remove(name).await?;
        self.forget(uid);
        Ok(())
    }

    /// Gives one of [`all`](Self::all) cgroups the smallest share of the CPUs.
    ///
    /// # Errors
    /// The kernel refuses the weight, or the cgroup is gone.
    pub async fn slow_down(&self, name: &CgroupName) -> Result<(), CgroupError> {
        let config = CgroupConfig {
            cpu_shares: Some(MIN_SHARES),
            ..CgroupConfig::default()
        };
        self.cgroups.update(name, &config).await
    }
}
