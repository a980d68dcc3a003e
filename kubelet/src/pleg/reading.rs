//! Reads one pod from the runtime.

use std::{sync::Arc, time::Duration};

use kubelet_cri_client::{CriClient, CriError, pod_status::PodStatus};
use kubelet_pod_spec::identity::PodUid;
use tokio::time::Instant;

use super::{PodRecord, inspect, record};
use crate::oom_watcher::OomWatcher;

/// Deadline of reading the details of one pod.
const INSPECTION_DEADLINE: Duration = Duration::from_secs(10);

/// The state of a pod at a time.
pub(super) struct Reading {
    pub(super) uid: PodUid,
    pub(super) at: Instant,
    pub(super) result: Result<(Arc<PodRecord>, PodStatus), ReadError>,
}

/// Why a pod could not be read.
pub(super) enum ReadError {
    /// Its sandboxes and containers could not be listed.
    List(CriError),
    /// Its details could not be read.
    Details(String),
}

/// The sandboxes and containers of one pod.
pub(super) async fn list_pod(cri: &CriClient, uid: &PodUid) -> Result<Arc<PodRecord>, CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_pod_sandboxes_of(uid), cri.list_containers_of(uid))?;
    Ok(record::group(sandboxes, containers)
        .remove(uid)
        .unwrap_or_default())
}

/// Reads the details of a listed pod. Details of ended containers are taken from `known`.
pub(super) async fn read_details(
    cri: &CriClient,
    oom_watcher: &OomWatcher,
    record: Arc<PodRecord>,
    known: &PodStatus,
) -> Result<(Arc<PodRecord>, PodStatus), ReadError> {
    let read = inspect::inspect(cri, oom_watcher, &record, known);
    match tokio::time::timeout(INSPECTION_DEADLINE, read).await {
        Ok(Ok(status)) => Ok((record, status)),
        Ok(Err(error)) => Err(ReadError::Details(error.to_string())),
        Err(_) => Err(ReadError::Details(format!(
            "no answer within {INSPECTION_DEADLINE:?}"
        ))),
    }
}
