//! Finds and opens the log that a request means.

use bytes::Bytes;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};
use kubelet_cri_client::{CriClient, pod_status};
use kubelet_pod_spec::identity;
use tokio::sync::mpsc;

use super::{LogOptions, LogReader, ReadError};

/// Chunks buffered for a reader that is slower than the file.
const PARTS: usize = 2;

/// A log in chunks.
pub type LogParts = mpsc::Receiver<Result<Bytes, ReadError>>;

/// Why there is no log, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The node has no such pod.
    #[error("pod {0:?} does not exist")]
    NoPod(String),
    /// The pod has no such container.
    #[error("container {container:?} not found in pod {pod:?}")]
    NoContainer {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// The container has no log yet.
    #[error("container {container:?} in pod {pod:?} {what}")]
    NoLog {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
        /// The state of the container.
        what: String,
    },
    /// The container has not run before.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// The runtime does not report the path of the log.
    #[error("unable to retrieve container logs for {0}")]
    Unknown(String),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Opens the log of a container of `pod`, whose current status is `status`.
///
/// # Errors
/// The container or its log does not exist, or the log cannot be read.
pub async fn open(
    cri: &CriClient,
    pod: &Pod,
    container: &str,
    status: &PodStatus,
    options: LogOptions,
) -> Result<LogParts, LogError> {
    let name = identity::name(pod);
    if !identity::has_container(pod, container) {
        return Err(LogError::NoContainer {
            container: container.to_owned(),
            pod: name.to_owned(),
        });
    }
    let id = container_id(name, container, status, options.previous)?;
    let unknown = || LogError::Unknown(id.clone());
    let cri_id = id.split_once("://").map_or(id.as_str(), |(_, id)| id);
    let status = cri.container_status(cri_id).await.map_err(|_| unknown())?;
    if status.log_path.is_empty() {
        return Err(unknown());
    }
    let reader = LogReader::open(status.log_path.as_ref(), cri_id, options).await?;
    let (sender, parts) = mpsc::channel(PARTS);
    let (cri, cri_id) = (cri.clone(), cri_id.to_owned());
    // Ends with the receiver.
    tokio::spawn(async move {
        reader.read(&sender, || is_running(&cri, &cri_id)).await;
    });
    Ok(parts)
}

/// Whether a container may still write; also if the runtime does not answer.
async fn is_running(cri: &CriClient, id: &str) -> bool {
    match cri.container_status(id).await {
        Ok(status) => {
            pod_status::ContainerState::from(status.state()) == pod_status::ContainerState::Running
        }
        Err(error) => !error.is_not_found(),
    }
}

/// The ID, prefixed with the name of the runtime, of the run whose log is shown: the current one,
/// or else the last one.
///
/// # Errors
/// The container has not run, or not before.
pub fn container_id(
    pod: &str,
    container: &str,
    status: &PodStatus,
    previous: bool,
) -> Result<String, LogError> {
    let no_log = |what: String| LogError::NoLog {
        container: container.to_owned(),
        pod: pod.to_owned(),
        what,
    };
    let statuses = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut statuses = statuses.into_iter().flatten().flatten();
    let Some(status) = statuses.find(|status| status.name == container) else {
        return Err(no_log("is not available".to_owned()));
    };
    let id_of_end = |state: Option<&ContainerState>| {
        let id = state?.terminated.as_ref()?.container_id.clone();
        id.filter(|id| !id.is_empty())
    };
    let last_id = id_of_end(status.last_state.as_ref());
    if previous {
        return last_id.ok_or_else(|| LogError::NoPrevious {
            container: container.to_owned(),
            pod: pod.to_owned(),
        });
    }
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return status
            .container_id
            .clone()
            .ok_or_else(|| no_log("is waiting to start - no logs yet".to_owned()));
    }
    let has_ended = |state: Option<&ContainerState>| state.is_some_and(|s| s.terminated.is_some());
    if has_ended(state) || has_ended(status.last_state.as_ref()) {
        return id_of_end(state)
            .or(last_id)
            .ok_or_else(|| no_log("is terminated".to_owned()));
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    Err(no_log(match waiting {
        None => "is waiting to start - no logs yet".to_owned(),
        Some(waiting) => {
            let reason = match waiting.reason.as_deref().unwrap_or_default() {
                "ErrImagePull" => "image can't be pulled",
                "ImagePullBackOff" => "trying and failing to pull image",
                reason => reason,
            };
            format!("is waiting to start: {reason}")
        }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn id(state: Value, last: Value, previous: bool) -> Result<String, String> {
        let status = serde_json::from_value(json!({"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "fake://now", "state": state, "lastState": last,
        }]}))
        .unwrap();
        container_id("web", "c", &status, previous).map_err(|error| error.to_string())
    }

    #[test]
    fn the_run_that_is_meant_is_found() {
        let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let running = json!({"running": {}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let none = json!({});
        for (state, last, previous, expected) in [
            (running.clone(), none.clone(), false, Ok("fake://now")),
            (
                running.clone(),
                none.clone(),
                true,
                Err("previous terminated container \"c\" in pod \"web\" not found"),
            ),
            (running, ended("fake://old"), true, Ok("fake://old")),
            (ended("fake://now"), none.clone(), false, Ok("fake://now")),
            (ended(""), ended("fake://old"), false, Ok("fake://old")),
            (
                ended(""),
                none.clone(),
                false,
                Err("container \"c\" in pod \"web\" is terminated"),
            ),
            (
                waiting("CrashLoopBackOff"),
                ended("fake://old"),
                false,
                Ok("fake://old"),
            ),
            (
                waiting("ErrImagePull"),
                none.clone(),
                false,
                Err("container \"c\" in pod \"web\" is waiting to start: image can't be pulled"),
            ),
            (
                waiting("ImagePullBackOff"),
                none.clone(),
                false,
                Err(
                    "container \"c\" in pod \"web\" is waiting to start: trying and failing to pull image",
                ),
            ),
            (
                waiting("ContainerCreating"),
                none.clone(),
                false,
                Err("container \"c\" in pod \"web\" is waiting to start: ContainerCreating"),
            ),
            (
                none.clone(),
                none.clone(),
                false,
                Err("container \"c\" in pod \"web\" is waiting to start - no logs yet"),
            ),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(id(state, last, previous), expected);
        }
        let error = container_id("web", "d", &PodStatus::default(), false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "container \"d\" in pod \"web\" is not available"
        );
    }
}
