//! The pods that this node should run, as their sources have them now.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;

use super::identity::{self, PodUid};

/// The desired pods, by UID and by full name.
#[derive(Debug, Default)]
pub struct PodManager {
    pods: RwLock<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    by_uid: BTreeMap<PodUid, Arc<Pod>>,
    by_full_name: BTreeMap<String, PodUid>,
}

impl PodManager {
    /// Adds a pod, or takes what changed of it.
    pub fn set(&self, pod: Arc<Pod>) {
        let uid = PodUid::of(&pod);
        let mut pods = self.pods.write();
        pods.by_full_name
            .insert(identity::full_name(&pod), uid.clone());
        pods.by_uid.insert(uid, pod);
    }

    /// Removes a pod.
    pub fn remove(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        let full_name = identity::full_name(pod);
        let mut pods = self.pods.write();
        pods.by_uid.remove(&uid);
        // Another pod may have taken the name already.
        if pods.by_full_name.get(&full_name) == Some(&uid) {
            pods.by_full_name.remove(&full_name);
        }
    }

    /// The pod of a UID.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.read().by_uid.get(uid).cloned()
    }

    /// The pod of a full name.
    pub fn get_by_full_name(&self, full_name: &str) -> Option<Arc<Pod>> {
        let pods = self.pods.read();
        let uid = pods.by_full_name.get(full_name)?;
        pods.by_uid.get(uid).cloned()
    }

    /// Every pod, by UID.
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
