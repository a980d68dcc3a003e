//! The tests' API server as unit tests ask for it: by paths, without sockets, on paused time.

use std::{sync::Arc, time::Duration};

use e2e::api_server::{ApiError, ApiServer, Caller, Record, Verdict};
use kube::client::Client;
use serde_json::{Value, json};

/// An API server with a namespace `ns`, and what every cluster has.
#[derive(Clone)]
pub(crate) struct FakeServer(ApiServer);

/// How the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// There are no connections.
    Away,
    /// Requests are never answered.
    Silent,
    /// Every request is refused.
    Forbidding,
}

impl FakeServer {
    pub(crate) fn new() -> Self {
        let server = ApiServer::start().unwrap();
        let namespace = json!({"metadata": {"name": "ns"}});
        server.create("v1", "namespaces", "", namespace).unwrap();
        Self(server)
    }

    /// A client that may do everything.
    pub(crate) fn client(&self) -> Client {
        self.0.client(Caller::admin())
    }

    /// A client of this node's, which may do what nodes may.
    pub(crate) fn client_of(&self, node: &str) -> Client {
        self.0.client(Caller::node(node))
    }

    /// Every request so far: `WATCH /api/v1/namespaces/default/secrets`.
    pub(crate) fn requests(&self) -> Vec<String> {
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

    /// How many watches there are.
    pub(crate) fn watches(&self) -> usize {
        self.0.watches()
    }

    /// Has the server answer otherwise from now on, and breaks the watches.
    pub(crate) fn turn(&self, mood: Mood) {
        self.0.set_available(false);
        self.0.set_available(mood != Mood::Away);
        self.0.intercept(match mood {
            Mood::Well | Mood::Away => None,
            Mood::Silent => Some(Arc::new(|_| Verdict::Delay(Duration::MAX))),
            Mood::Forbidding => Some(Arc::new(|_| {
                Verdict::Refuse(ApiError::new(403, "Forbidden", "not for this node"))
            })),
        });
    }

    /// Puts an object, or another one in its place; its namespace is made for it.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let (version, namespace, plural) = collection(path);
        let namespace = namespace.or(object["metadata"]["namespace"].as_str());
        let namespace = namespace.unwrap_or_default().to_owned();
        if !namespace.is_empty() {
            let made = json!({"metadata": {"name": namespace}});
            self.0.put("v1", "namespaces", "", made).unwrap();
        }
        self.0.put(version, plural, &namespace, object).unwrap();
    }

    /// Takes an object away.
    pub(crate) fn remove(&self, path: &str, name: &str) {
        let (version, namespace, plural) = collection(path);
        let (namespace, now) = (namespace.unwrap_or_default(), json!({}));
        let gone = self.0.delete(version, plural, namespace, name, &now);
        gone.unwrap();
    }

    /// Has a resource in these versions alone.
    pub(crate) fn serve(&self, group: &str, plural: &str, all: &[&str], versions: &[&str]) {
        for version in all {
            let served = versions.contains(version);
            let version = format!("{group}/{version}");
            self.0.serve(&version, plural, served).unwrap();
        }
    }

    /// An object as it is now.
    pub(crate) fn object(&self, path: &str, name: &str) -> Option<Value> {
        let (version, namespace, plural) = collection(path);
        let found = self
            .0
            .get(version, plural, namespace.unwrap_or_default(), name);
        found.ok()
    }
}

/// API version, namespace and plural name of a collection's path.
fn collection(path: &str) -> (&str, Option<&str>, &str) {
    let path = path.strip_prefix("/apis/").or(path.strip_prefix("/api/"));
    let (rest, plural) = path.and_then(|path| path.rsplit_once('/')).unwrap();
    match rest.split_once("/namespaces/") {
        Some((version, namespace)) => (version, Some(namespace), plural),
        None => (rest, None, plural),
    }
}
