//! The pods at the tests' API server, as tests of one node's pods use them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::client::Client;
use serde_json::{Value, json};
use test_api_server::{ApiError, ApiServer, Caller, Interceptor, Record, Verdict};

const NAMESPACE: &str = "default";

/// An API server and its pods in the namespace `default`.
#[derive(Clone)]
pub(crate) struct Api(ApiServer);

impl Api {
    pub(crate) fn new() -> Self {
        Self(ApiServer::start().unwrap())
    }

    /// A client with the node's identity.
    pub(crate) fn client(&self) -> Client {
        self.0.client(Caller::node("node"))
    }

    /// All requests for pods so far, such as `PATCH default/web/status`.
    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.0.requests().into_iter();
        let of_pods = requests.filter(|r| r.resource.split('/').next() == Some("pods"));
        of_pods.map(|request| line(&request)).collect()
    }

    /// The number of requests that start with `beginning`.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        let requests = self.requests();
        requests.iter().filter(|r| r.starts_with(beginning)).count()
    }

    /// Makes all requests fail and breaks the watches, or makes the server available again.
    pub(crate) fn set_away(&self, away: bool) {
        self.0.set_available(!away);
    }

    /// Refuses or allows the creation of pods by the node.
    pub(crate) fn refuse_creations(&self, refuses: bool) {
        let refuse = |record: &Record| match record.verb {
            "create" => Verdict::Refuse(ApiError::bad_request("no pods of nodes")),
            _ => Verdict::Pass,
        };
        self.0
            .intercept(refuses.then(|| Arc::new(refuse) as Arc<Interceptor>));
    }

    /// Compacts all changes so far and ends the watches.
    pub(crate) fn compact(&self) {
        self.0.compact();
        self.0.end_watches();
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Pod> {
        let pod = self.0.get("v1", "pods", NAMESPACE, name).ok()?;
        Some(serde_json::from_value(pod).unwrap())
    }

    pub(crate) fn phase(&self, name: &str) -> String {
        let status = self.pod(name).and_then(|pod| pod.status);
        status.and_then(|status| status.phase).unwrap_or_default()
    }

    /// The status of a condition; empty if there is none.
    pub(crate) fn condition(&self, name: &str, type_: &str) -> String {
        let status = self.pod(name).and_then(|pod| pod.status);
        let conditions = status.and_then(|status| status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.find(|condition| condition.type_ == type_);
        condition.map(|c| c.status).unwrap_or_default()
    }

    /// Binds a new pod to the node, as a scheduler does.
    pub(crate) fn bind(&self, mut pod: Pod) {
        pod.metadata.annotations = None;
        let name = pod.metadata.name.clone().unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        self.0.restore("v1", "pods", NAMESPACE, pod).unwrap();
        self.0.bind(NAMESPACE, &name, "node").unwrap();
    }

    /// Creates the node with a label.
    pub(crate) fn label_node(&self, key: &str, value: &str) {
        let node = json!({"metadata": {"name": "node", "labels": {key: value}}});
        self.0.put("v1", "nodes", "", node).unwrap();
    }

    /// Edits a pod.
    pub(crate) fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.0.edit("v1", "pods", NAMESPACE, name, edit).unwrap();
    }

    /// Deletes a pod, as `kubectl delete` does.
    pub(crate) fn delete(&self, name: &str, grace: i64) {
        let options = json!({"gracePeriodSeconds": grace});
        let deleted = self.0.delete("v1", "pods", NAMESPACE, name, &options);
        deleted.unwrap();
    }
}

fn line(request: &Record) -> String {
    let method = match request.verb {
        "get" | "list" => "GET",
        "watch" => "WATCH",
        "create" => "POST",
        "patch" => "PATCH",
        "delete" => "DELETE",
        other => other,
    };
    let place = request.path.trim_start_matches("/api/v1/");
    let place = place.trim_start_matches("namespaces/").replace("/pods", "");
    format!("{method} {place}")
}
