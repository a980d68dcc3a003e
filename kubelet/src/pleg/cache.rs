//! The pod cache: the runtime's status of each pod, and how fresh it is.

use std::{collections::HashMap, sync::Arc};

use kubelet_cri_client::pod_status::PodStatus;
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Why the status of a pod is unknown.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot read the pod's status from the runtime: {0}")]
pub struct CacheError(pub Arc<str>);

/// Statuses of pods by UID. A reader that changed something in the runtime requests a status that
/// is newer than its change.
#[derive(Debug)]
pub struct PodCache {
    inner: Mutex<Inner>,
    /// Wakes tasks in the order in which they waited, unlike a watch channel.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<PodUid, Entry>,
    /// The start of the last complete list of the runtime: at that time, every entry that is not
    /// being inspected was still right.
    listed_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    status: Result<Arc<PodStatus>, CacheError>,
    /// The start of the list that the status comes from.
    at: Option<Instant>,
    /// A list showed a change, and its details are being read.
    inspecting: bool,
}

impl Default for PodCache {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl PodCache {
    /// The last known status; an empty one for a pod that the runtime does not know.
    ///
    /// # Errors
    /// It could not be read.
    pub fn get(&self, uid: &PodUid) -> Result<Arc<PodStatus>, CacheError> {
        match self.inner.lock().entries.get(uid) {
            Some(entry) => entry.status.clone(),
            None => Ok(Arc::default()),
        }
    }

    /// Waits for a status that is newer than `min`. With `None`, returns the last known one once
    /// the runtime has been listed.
    ///
    /// # Errors
    /// It could not be read.
    pub async fn get_newer_than(
        &self,
        uid: &PodUid,
        min: Option<Instant>,
    ) -> Result<Arc<PodStatus>, CacheError> {
        loop {
            // Before the check, so that no change is missed.
            let changed = self.changed.notified();
            if let Some(status) = self.inner.lock().newer_than(uid, min) {
                return status;
            }
            changed.await;
        }
    }

    /// A change of the pod was detected and is being read.
    pub(super) fn begin_inspection(&self, uid: &PodUid) {
        let mut inner = self.inner.lock();
        let entry = inner.entries.entry(uid.clone()).or_insert_with(|| Entry {
            status: Ok(Arc::default()),
            at: None,
            inspecting: true,
        });
        entry.inspecting = true;
    }

    /// Whether the status is newer than `min`.
    pub(super) fn is_newer_than(&self, uid: &PodUid, min: Instant) -> bool {
        self.inner.lock().newer_than(uid, Some(min)).is_some()
    }

    /// Stores the status of the pod at `at`, or why it is unknown. `changed`: the pod has changed
    /// since, and will be read again.
    pub(super) fn set(
        &self,
        uid: &PodUid,
        status: Result<Arc<PodStatus>, CacheError>,
        at: Instant,
        changed: bool,
    ) {
        self.inner.lock().entries.insert(
            uid.clone(),
            Entry {
                status,
                at: Some(at),
                inspecting: changed,
            },
        );
        self.changed.notify_waiters();
    }

    /// The runtime does not know the pod any more.
    pub(super) fn remove(&self, uid: &PodUid) {
        self.inner.lock().entries.remove(uid);
    }

    /// A complete list, started at `at`, was processed.
    pub(super) fn listed(&self, at: Instant) {
        self.inner.lock().listed_at = Some(at);
        self.changed.notify_waiters();
    }
}

impl Inner {
    fn newer_than(
        &self,
        uid: &PodUid,
        min: Option<Instant>,
    ) -> Option<Result<Arc<PodStatus>, CacheError>> {
        let is_newer = |at: Option<Instant>| match (at, min) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(at), Some(min)) => at > min,
        };
        let Some(entry) = self.entries.get(uid) else {
            return is_newer(self.listed_at).then(|| Ok(Arc::default()));
        };
        let fresh = is_newer(entry.at) || (!entry.inspecting && is_newer(self.listed_at));
        fresh.then(|| entry.status.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_what_is_newer_than_its_change() {
        let cache = Arc::new(PodCache::default());
        let uid = PodUid::from("a");
        cache.listed(Instant::now());
        assert!(cache.get_newer_than(&uid, None).await.is_ok());

        tokio::time::advance(SECOND).await;
        let change = Instant::now();
        let reader = tokio::spawn({
            let (cache, uid) = (Arc::clone(&cache), uid.clone());
            async move { cache.get_newer_than(&uid, Some(change)).await }
        });
        tokio::time::sleep(SECOND).await;
        assert!(!reader.is_finished());
        cache.listed(Instant::now());
        assert_eq!(*reader.await.unwrap().unwrap(), PodStatus::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_says_nothing_about_a_pod_that_is_being_inspected() {
        let cache = PodCache::default();
        let uid = PodUid::from("a");
        let before = Instant::now();
        tokio::time::advance(SECOND).await;
        cache.begin_inspection(&uid);
        cache.listed(Instant::now());
        let read = cache.get_newer_than(&uid, Some(before));
        assert!(tokio::time::timeout(SECOND, read).await.is_err());

        let hung = Err(CacheError(Arc::from("hung")));
        cache.set(&uid, hung, Instant::now(), false);
        let error = cache.get_newer_than(&uid, Some(before)).await.unwrap_err();
        assert!(error.to_string().ends_with("hung"));
    }
}
