//! `kubelet logs`: prints the log of a container through the running kubelet.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{StatusCode, body::Incoming};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity;
use kubelet_server::socket_path;

use crate::status_command::{self, StatusError};

/// kubectl's annotation that names the default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Maximum length of an error response in bytes.
const MAX_REFUSAL: usize = 64 << 10;

/// The log to print, and which part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogsOptions {
    /// Root directory of the running kubelet.
    pub root_dir: PathBuf,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod, with or without the node's name as suffix.
    pub pod: String,
    /// The container; the pod's default container when unset.
    pub container: Option<String>,
    /// Continue until the container ends.
    pub follow: bool,
    /// The log of the container's previous instance.
    pub previous: bool,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Only this number of lines from the end.
    pub tail: Option<u64>,
    /// Only lines that are not older.
    pub since: Option<Duration>,
    /// Only lines after this time.
    pub since_time: Option<Timestamp>,
    /// At most this number of bytes.
    pub limit_bytes: Option<u64>,
}

/// Why the log cannot be printed, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The kubelet does not respond, or not as expected.
    #[error(transparent)]
    Kubelet(#[from] StatusError),
    /// The node has no such pod.
    #[error("no pod {pod:?} in namespace {namespace:?} on this node; its pods are: {known}")]
    NoPod {
        /// The pod.
        pod: String,
        /// The namespace.
        namespace: String,
        /// The existing pods.
        known: String,
    },
    /// The kubelet's error response.
    #[error("{0}")]
    Refused(String),
    /// The connection failed while reading the log.
    #[error("the log stream was interrupted: {0}")]
    Broken(#[source] hyper::Error),
}

/// A log that is being read.
#[derive(Debug)]
pub struct Log {
    body: Incoming,
    note: Option<String>,
}

impl Log {
    /// A note for the user about the default container.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The next part; none at the end.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, LogsError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(part) = frame.map_err(LogsError::Broken)?.into_data() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

impl LogsOptions {
    /// The options as query parameters of the kubelet's API.
    pub fn query(&self) -> String {
        let mut parameters = Vec::new();
        for (name, is_set) in [
            ("follow", self.follow),
            ("previous", self.previous),
            ("timestamps", self.timestamps),
        ] {
            if is_set {
                parameters.push(format!("{name}=true"));
            }
        }
        // Rounded up to whole seconds, as kubectl.
        let seconds = self
            .since
            .map(|since| since.as_nanos().div_ceil(1_000_000_000));
        let numbers = [
            ("tailLines", self.tail.map(u128::from)),
            ("sinceSeconds", seconds),
            ("limitBytes", self.limit_bytes.map(u128::from)),
        ];
        for (name, value) in numbers {
            parameters.extend(value.map(|value| format!("{name}={value}")));
        }
        parameters.extend(self.since_time.map(|time| format!("sinceTime={time}")));
        parameters.join("&")
    }
}

/// Requests a log from the kubelet.
///
/// # Errors
/// The kubelet does not respond, or has no such log.
pub async fn open(options: &LogsOptions) -> Result<Log, LogsError> {
    let pods = status_command::pods(&options.root_dir).await?;
    let pod = find(&pods, options)?;
    let name = identity::name(pod);
    let (container, note) = match &options.container {
        Some(container) => (container.clone(), None),
        None => default_container(pod),
    };
    let path = format!(
        "/containerLogs/{}/{name}/{}?{}",
        options.namespace,
        escaped(&container),
        options.query()
    );
    let answer = |reason: String| StatusError::Answer {
        address: socket_path(&options.root_dir).display().to_string(),
        reason,
    };
    let stream = status_command::connect(&options.root_dir).await?;
    let response = status_command::get(stream, "localhost", &path)
        .await
        .map_err(answer)?;
    let status = response.status();
    let body = response.into_body();
    if status == StatusCode::OK {
        return Ok(Log { body, note });
    }
    let reason = Limited::new(body, MAX_REFUSAL).collect().await;
    let reason = reason.map_err(|error| answer(error.to_string()))?;
    let reason = String::from_utf8_lossy(&reason.to_bytes()).into_owned();
    Err(LogsError::Refused(if reason.is_empty() {
        format!("the kubelet responded with HTTP status {status}")
    } else {
        reason
    }))
}

/// The pod of the name, with or without the node's name as suffix.
fn find<'a>(pods: &'a [Pod], options: &LogsOptions) -> Result<&'a Pod, LogsError> {
    let of_namespace = || {
        pods.iter()
            .filter(|pod| identity::namespace(pod) == options.namespace)
    };
    let on_node = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node.map(|node| format!("{}-{node}", options.pod))
    };
    of_namespace()
        .find(|pod| identity::name(pod) == options.pod)
        .or_else(|| of_namespace().find(|pod| on_node(pod).as_deref() == Some(identity::name(pod))))
        .ok_or_else(|| {
            let known: Vec<&str> = of_namespace().map(identity::name).collect();
            LogsError::NoPod {
                pod: options.pod.clone(),
                namespace: options.namespace.clone(),
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                },
            }
        })
}

/// The default container, and a note for the user about the choice.
fn default_container(pod: &Pod) -> (String, Option<String>) {
    let names: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| container.name.as_str())
        .collect();
    let annotated = identity::annotation(pod, DEFAULT_CONTAINER);
    match (annotated, &*names) {
        (Some(name), _) if names.contains(&name) => (name.to_owned(), None),
        (_, []) => (String::new(), None),
        (_, [one]) => ((*one).to_owned(), None),
        (_, [first, ..]) => {
            let note = format!("Defaulted container {first:?} out of: {}", names.join(", "));
            ((*first).to_owned(), Some(note))
        }
    }
}

/// Percent-encodes a path segment. Valid container names need no encoding.
fn escaped(segment: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut escaped = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if plain(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(pod: &str) -> LogsOptions {
        LogsOptions {
            root_dir: PathBuf::new(),
            namespace: "default".to_owned(),
            pod: pod.to_owned(),
            container: None,
            follow: false,
            previous: true,
            timestamps: false,
            tail: None,
            since: Some(Duration::from_millis(1500)),
            since_time: None,
            limit_bytes: Some(3),
        }
    }

    #[test]
    fn pods_are_found_with_and_without_the_nodes_name() {
        let pods: Vec<Pod> = serde_json::from_value(json!([
            {"metadata": {"name": "web-n1", "namespace": "default"}, "spec": {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}]}},
            {"metadata": {"name": "web", "namespace": "other"}, "spec": {"nodeName": "n1", "containers": []}},
        ]))
        .unwrap();
        for name in ["web", "web-n1"] {
            assert_eq!(
                identity::name(find(&pods, &options(name)).unwrap()),
                "web-n1"
            );
        }
        let error = find(&pods, &options("db")).unwrap_err().to_string();
        assert_eq!(
            error,
            "no pod \"db\" in namespace \"default\" on this node; its pods are: web-n1"
        );
        let (container, note) = default_container(&pods[0]);
        assert_eq!(container, "a");
        assert_eq!(
            note.as_deref(),
            Some("Defaulted container \"a\" out of: a, b")
        );
    }

    #[test]
    fn options_are_the_apis() {
        assert_eq!(
            options("web").query(),
            "previous=true&sinceSeconds=2&limitBytes=3"
        );
        assert_eq!(escaped("a/b c"), "a%2Fb%20c");
    }
}
