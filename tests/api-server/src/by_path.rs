//! The API server for unit tests: objects addressed by path, no sockets, paused time.

#![expect(clippy::unwrap_used, reason = "a fault here is a fault of the test")]

use std::{sync::Arc, time::Duration};

use kube::client::Client;
use serde_json::{Value, json};

use super::{ApiError, ApiServer, Caller, Record, Verdict};

/// An [`ApiServer`] with a namespace `ns`, whose objects are addressed by path.
#[derive(Clone)]
pub struct ByPath(ApiServer);

/// How the server responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It serves requests.
    Up,
    /// It accepts no connections.
    Down,
    /// It never answers a request.
    Hung,
    /// It refuses every request.
    Forbidding,
}

impl std::fmt::Debug for ByPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByPath").finish_non_exhaustive()
    }
}

impl Default for ByPath {
    fn default() -> Self {
        Self::new()
    }
}

impl ByPath {
    /// Starts a server.
    pub fn new() -> Self {
        let server = ApiServer::start().unwrap();
        let namespace = json!({"metadata": {"name": "ns"}});
        server.create("v1", "namespaces", "", namespace).unwrap();
        Self(server)
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        self.0.client(Caller::admin())
    }

    /// A client with the permissions of a node.
    pub fn client_of(&self, node: &str) -> Client {
        self.0.client(Caller::node(node))
    }

    /// Every request so far, such as `WATCH /api/v1/namespaces/default/secrets`.
    pub fn requests(&self) -> Vec<String> {
        let request = |record: Record| {
            let method = match record.verb {
                "get" | "list" => "GET",
                "watch" => "WATCH",
                _ => "WRITE",
            };
            format!("{method} {}", record.path)
        };
        self.0.requests().into_iter().map(request).collect()
    }

    /// The number of open watches.
    pub fn watches(&self) -> usize {
        self.0.watches()
    }

    /// Changes how the server responds, and breaks the open watches.
    pub fn set_health(&self, health: Health) {
        self.0.set_available(false);
        self.0.set_available(health != Health::Down);
        self.0.intercept(match health {
            Health::Up | Health::Down => None,
            Health::Hung => Some(Arc::new(|_| Verdict::Delay(Duration::MAX))),
            Health::Forbidding => Some(Arc::new(|_| {
                Verdict::Refuse(ApiError::new(403, "Forbidden", "not for this node"))
            })),
        });
    }

    /// Creates or replaces an object, and creates its namespace.
    pub fn put(&self, path: &str, object: Value) {
        let (version, namespace, plural) = collection(path);
        let namespace = namespace.or(object["metadata"]["namespace"].as_str());
        let namespace = namespace.unwrap_or_default().to_owned();
        if !namespace.is_empty() {
            let made = json!({"metadata": {"name": namespace}});
            self.0.put("v1", "namespaces", "", made).unwrap();
        }
        self.0.put(version, plural, &namespace, object).unwrap();
    }

    /// Sets the status of an object, as a controller does.
    pub fn put_status(&self, path: &str, name: &str, status: &Value) {
        let (version, namespace, plural) = collection(path);
        let namespace = namespace.unwrap_or_default();
        let edited = self.0.edit(version, plural, namespace, name, |object| {
            object["status"] = status.clone();
        });
        edited.unwrap();
    }

    /// Deletes an object.
    pub fn remove(&self, path: &str, name: &str) {
        let (version, namespace, plural) = collection(path);
        let (namespace, now) = (namespace.unwrap_or_default(), json!({}));
        let gone = self.0.delete(version, plural, namespace, name, &now);
        gone.unwrap();
    }

    /// Serves a resource in these of its versions only.
    pub fn serve(&self, group: &str, plural: &str, all: &[&str], versions: &[&str]) {
        for version in all {
            let served = versions.contains(version);
            let version = format!("{group}/{version}");
            self.0.serve(&version, plural, served).unwrap();
        }
    }

    /// The current state of an object.
    pub fn object(&self, path: &str, name: &str) -> Option<Value> {
        let (version, namespace, plural) = collection(path);
        let found = self
            .0
            .get(version, plural, namespace.unwrap_or_default(), name);
        found.ok()
    }
}

/// The API version, the namespace and the plural name in a collection's path.
fn collection(path: &str) -> (&str, Option<&str>, &str) {
    let path = path.strip_prefix("/apis/").or(path.strip_prefix("/api/"));
    let (rest, plural) = path.and_then(|path| path.rsplit_once('/')).unwrap();
    match rest.split_once("/namespaces/") {
        Some((version, namespace)) => (version, Some(namespace), plural),
        None => (rest, None, plural),
    }
}
