//! Tells by events of the pod that the change of a volume's ownership takes long.

use std::{
    path::Path,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

/// From the start of the change to the first event, and then between events.
const FIRST: Duration = Duration::from_secs(30);
const NEXT: Duration = Duration::from_secs(60);

const ADVICE: &str = "consider using OnRootMismatch - https://kubernetes.io/docs/tasks/\
    configure-pod-container/security-context/\
    #configure-volume-permission-and-ownership-change-policy-for-pods";

/// How far a change of the ownership has come. It belongs to one mount request, which is carried out
/// at most once at a time.
#[derive(Debug, Default)]
pub struct OwnershipProgress {
    started: Mutex<Option<Instant>>,
    files: AtomicU64,
}

impl OwnershipProgress {
    /// The change of the files begins.
    pub(super) fn begin(&self) {
        *self.started.lock() = Some(Instant::now());
        self.files.store(0, Ordering::Relaxed);
    }

    /// All files are changed, or one could not be.
    pub(super) fn end(&self) {
        *self.started.lock() = None;
    }

    /// One more file was changed.
    pub(super) fn count(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}

/// Carries out `set_up` of the volume of a pod in `dir`, and tells meanwhile if the change of the
/// ownership takes long.
pub(super) async fn report<T>(
    progress: &OwnershipProgress,
    (pod, dir): (&Pod, &Path),
    events: &EventRecorder,
    set_up: impl Future<Output = T>,
) -> T {
    let mut set_up = pin!(set_up);
    let (mut next, mut told) = (Instant::now() + FIRST, false);
    loop {
        if let Ok(result) = timeout_at(next, &mut set_up).await {
            return result;
        }
        let Some(started) = *progress.started.lock() else {
            next += FIRST;
            continue;
        };
        if started.elapsed() < FIRST {
            next = started + FIRST;
            continue;
        }
        let (subject, reason) = (
            Subject::Pod(pod),
            reason::VOLUME_PERMISSION_CHANGE_IN_PROGRESS,
        );
        let dir = reported(pod, dir);
        if !told {
            let message = format_args!(
                "Setting volume ownership for {dir} is taking longer than expected, {ADVICE}"
            );
            events.warning(subject, reason, message);
        } else {
            let files = progress.files.load(Ordering::Relaxed);
            let message =
                format_args!("Setting volume ownership for {dir}, processed {files} files.");
            events.warning(subject, reason, message);
        }
        told = true;
        next += NEXT;
    }
}

/// The volume's directory, from the pod's UID on.
fn reported(pod: &Pod, dir: &Path) -> String {
    let dir = dir.display().to_string();
    let uid = PodUid::of(pod);
    match dir.find(uid.as_str()) {
        Some(start) => dir[start..].to_owned(),
        None => dir,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_slow_change_is_told_and_how_far_it_is() {
        let second = Duration::from_secs(1);
        let (events, mut told) = EventRecorder::new("node");
        let mut messages = || {
            let events = std::iter::from_fn(|| told.try_recv().ok());
            events.filter_map(|event| event.message).collect::<Vec<_>>()
        };
        let pod = json!({"metadata": {"uid": "uid", "name": "p", "namespace": "ns"}});
        let pod = serde_json::from_value(pod).unwrap();
        let volume = (&pod, Path::new("/root/pods/uid/volumes/k~p/v"));
        let progress = OwnershipProgress::default();
        // A slow mount, then a short change.
        let set_up = async {
            sleep(100 * second).await;
            progress.begin();
            sleep(29 * second).await;
        };
        report(&progress, volume, &events, set_up).await;
        assert_eq!(messages(), [""; 0]);
        let set_up = async {
            progress.begin();
            sleep(31 * second).await;
            progress.count();
            progress.count();
            sleep(120 * second).await;
        };
        report(&progress, volume, &events, set_up).await;
        let dir = "uid/volumes/k~p/v";
        let processed = format!("Setting volume ownership for {dir}, processed 2 files.");
        let expected = [
            format!("Setting volume ownership for {dir} is taking longer than expected, {ADVICE}"),
            processed.clone(),
            processed,
        ];
        assert_eq!(messages(), expected);
    }
}
