//! The pods that this node should run, as their sources have them now.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::{self, PodUid};
use parking_lot::RwLock;

/// The desired pods, by UID and by full name, and the mirror pods of static pods.
#[derive(Debug, Default)]
pub struct PodManager {
    pods: RwLock<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    by_uid: BTreeMap<PodUid, Arc<Pod>>,
    by_full_name: BTreeMap<String, PodUid>,
    /// By full name, which a static pod and its mirror pod share.
    mirrors: BTreeMap<String, Arc<Pod>>,
}

impl PodManager {
    /// Adds or updates a pod.
    pub fn set(&self, pod: Arc<Pod>) {
        let uid = PodUid::of(&pod);
        let full_name = identity::full_name(&pod);
        let mut pods = self.pods.write();
        if identity::is_mirror(&pod) {
            pods.mirrors.insert(full_name, pod);
            return;
        }
        pods.by_full_name.insert(full_name, uid.clone());
        pods.by_uid.insert(uid, pod);
    }

    /// Removes a pod.
    pub fn remove(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        let full_name = identity::full_name(pod);
        let mut pods = self.pods.write();
        if identity::is_mirror(pod) {
            let mirror = pods.mirrors.get(&full_name);
            if mirror.is_some_and(|mirror| PodUid::of(mirror) == uid) {
                pods.mirrors.remove(&full_name);
            }
            return;
        }
        pods.by_uid.remove(&uid);
        // Another pod may own the name already.
        if pods.by_full_name.get(&full_name) == Some(&uid) {
            pods.by_full_name.remove(&full_name);
        }
    }

    /// The pod with a UID.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.read().by_uid.get(uid).cloned()
    }

    /// The pod with a full name.
    pub fn get_by_full_name(&self, full_name: &str) -> Option<Arc<Pod>> {
        let pods = self.pods.read();
        let uid = pods.by_full_name.get(full_name)?;
        pods.by_uid.get(uid).cloned()
    }

    /// The mirror pod of a static pod's full name. It may mirror an earlier version of the pod.
    pub fn mirror(&self, full_name: &str) -> Option<Arc<Pod>> {
        self.pods.read().mirrors.get(full_name).cloned()
    }

    /// The mirror pods without a static pod.
    pub fn orphaned_mirrors(&self) -> Vec<Arc<Pod>> {
        let pods = self.pods.read();
        let mirrors = pods.mirrors.iter();
        mirrors
            .filter(|(full_name, _)| !pods.by_full_name.contains_key(*full_name))
            .map(|(_, mirror)| Arc::clone(mirror))
            .collect()
    }

    /// The number of mirror pods.
    pub fn mirrors(&self) -> usize {
        self.pods.read().mirrors.len()
    }

    /// All pods except mirror pods, sorted by UID.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.read().by_uid.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    }

    #[test]
    fn a_mirror_pod_is_none_to_run() {
        let manager = PodManager::default();
        let mut mirror = Pod::clone(&pod("web", "m"));
        let annotations = mirror.metadata.annotations.get_or_insert_default();
        annotations.insert(identity::CONFIG_MIRROR.to_owned(), "h".to_owned());
        let mirror = Arc::new(mirror);
        manager.set(Arc::clone(&mirror));
        assert!(manager.pods().is_empty());
        assert_eq!(manager.orphaned_mirrors(), [Arc::clone(&mirror)]);

        let web = pod("web", "1");
        let full_name = identity::full_name(&web);
        manager.set(web);
        assert!(manager.orphaned_mirrors().is_empty());
        assert_eq!(manager.mirror(&full_name), Some(Arc::clone(&mirror)));
        manager.remove(&mirror);
        assert_eq!(manager.mirror(&full_name), None);
        assert_eq!(manager.pods().len(), 1);
    }

    #[test]
    fn a_name_belongs_to_the_pod_that_took_it_last() {
        let manager = PodManager::default();
        let (old, new) = (pod("web", "1"), pod("web", "2"));
        manager.set(Arc::clone(&old));
        manager.set(Arc::clone(&new));
        manager.remove(&old);
        assert_eq!(manager.pods().len(), 1);
        let found = manager.get_by_full_name(&identity::full_name(&new));
        assert_eq!(found.map(|pod| PodUid::of(&pod)), Some(PodUid::from("2")));
    }
}
