//! The address of a kubelet, and the path for a request.

use hyper::Uri;
use serde_json::{Value, json};

use crate::{
    Server,
    errors::{ApiError, Cause},
    request::{Query, Target},
    resources,
    storage::Key,
    strategy::text,
};

/// The preferred types of node addresses, in order, as kubeadm sets them.
const ADDRESSES: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];
/// The kubelet's port if the node does not report one.
const PORT: u16 = 10250;
/// The declared feature of nodes whose kubelets accept WebSockets.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// A kubelet and a path on it.
#[derive(Debug, Clone)]
pub(super) struct Location {
    /// The IP address or host name.
    pub(super) host: String,
    /// The port.
    pub(super) port: u16,
    /// Whether it uses TLS.
    pub(super) tls: bool,
    /// The path and the query.
    pub(super) path: String,
    /// Whether the node declares that its kubelet accepts WebSockets.
    pub(super) takes_websockets: bool,
}

impl Location {
    /// The path and query as a URI.
    pub(super) fn uri(&self) -> Result<Uri, ApiError> {
        self.path
            .parse()
            .map_err(|error| ApiError::bad_request(format!("{:?}: {error}", self.path)))
    }

    /// The host and port; an IPv6 address is in brackets.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The URL, for messages.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    fn at(mut self, path: String, parameters: &[(&str, String)]) -> Self {
        let query: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("{key}={}", escape(value)))
            .collect();
        self.path = if query.is_empty() {
            path
        } else {
            format!("{path}?{}", query.join("&"))
        };
        self
    }
}

impl Server {
    /// The location of a pod's logs; `None` if the pod has no node.
    pub(super) fn log_location(
        &self,
        target: &Target,
        query: &Query,
    ) -> Result<Option<Location>, ApiError> {
        let name = target.required_name()?;
        let causes = check_log_options(query);
        if !causes.is_empty() {
            return Err(ApiError::invalid_kind("", "PodLogOptions", name, &causes));
        }
        let pod = self.get(target)?;
        let container = container(&pod, name, query.text("container"))?;
        let node = text(&pod, "/spec/nodeName");
        if node.is_empty() {
            return Ok(None);
        }
        let mut parameters = Vec::new();
        for flag in ["follow", "previous", "timestamps"] {
            if query.flag(flag) {
                parameters.push((flag, "true".to_owned()));
            }
        }
        for number in [
            "sinceSeconds",
            "sinceTime",
            "tailLines",
            "limitBytes",
            "stream",
        ] {
            if !query.text(number).is_empty() {
                parameters.push((number, query.text(number).to_owned()));
            }
        }
        let namespace = target.namespace_text();
        let path = format!("/containerLogs/{namespace}/{name}/{container}");
        Ok(Some(self.kubelet(node)?.at(path, &parameters)))
    }

    /// The location of a pod's `exec` or `attach`.
    pub(super) fn stream_location(
        &self,
        target: &Target,
        query: &Query,
    ) -> Result<Location, ApiError> {
        let name = target.required_name()?;
        let pod = self.get(target)?;
        let container = container(&pod, name, query.text("container"))?;
        let mut parameters = Vec::new();
        for (flag, parameter) in [
            ("stdin", "input"),
            ("stdout", "output"),
            ("stderr", "error"),
            ("tty", "tty"),
        ] {
            if query.flag(flag) {
                parameters.push((parameter, "1".to_owned()));
            }
        }
        if target.subresource == "exec" {
            for word in query.all("command") {
                parameters.push(("command", word.to_owned()));
            }
        }
        let (verb, namespace) = (&target.subresource, target.namespace_text());
        let path = format!("/{verb}/{namespace}/{name}/{container}");
        Ok(self.kubelet(host_of(&pod, name)?)?.at(path, &parameters))
    }

    /// The location of a pod's port forwarding.
    pub(super) fn port_forward_location(
        &self,
        target: &Target,
        query: &Query,
    ) -> Result<Location, ApiError> {
        let name = target.required_name()?;
        let pod = self.get(target)?;
        let ports: Vec<&str> = query.all("ports").collect();
        let mut parameters = Vec::new();
        if !ports.is_empty() {
            parameters.push(("port", ports.join(",")));
        }
        let path = format!("/portForward/{}/{name}", target.namespace_text());
        Ok(self.kubelet(host_of(&pod, name)?)?.at(path, &parameters))
    }

    /// The location of a path below a node's `proxy`: its kubelet, or another port (`name:port`,
    /// `https:name:port`).
    pub(super) fn node_location(&self, target: &Target, uri: &Uri) -> Result<Location, ApiError> {
        let asked = target.required_name()?;
        let parts: Vec<&str> = asked.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] if matches!(*scheme, "http" | "https") => (*scheme, *name, *port),
            _ => {
                let message = format!("invalid node request {asked:?}");
                return Err(ApiError::bad_request(message));
            }
        };
        let mut location = self.kubelet(name)?;
        if !port.is_empty() && port != location.port.to_string() {
            location.port = port
                .parse()
                .map_err(|_| ApiError::bad_request(format!("invalid node request {asked:?}")))?;
            location.tls = scheme == "https";
        }
        // "", "api", "v1", "nodes", name, "proxy" and the rest.
        let below = uri.path().splitn(7, '/').nth(6).unwrap_or_default();
        location.path = match uri.query() {
            Some(query) => format!("/{below}?{query}"),
            None => format!("/{below}"),
        };
        Ok(location)
    }

    /// A node's kubelet, from the node's status.
    pub(super) fn kubelet(&self, node: &str) -> Result<Location, ApiError> {
        let resource =
            resources::find("", "v1", "nodes").ok_or_else(|| ApiError::internal("no nodes"))?;
        let found = self.storage.lock().get(&Key::new(resource, "", node));
        let found = found.ok_or_else(|| ApiError::not_found(resource, node))?;
        let status = &found["status"];
        let addresses = || status["addresses"].as_array().into_iter().flatten();
        let host = ADDRESSES
            .iter()
            .find_map(|kind| addresses().find(|address| address["type"] == *kind))
            .map(|address| text(address, "/address").to_owned())
            .ok_or_else(|| {
                let wanted = ADDRESSES.join(" ");
                let message = format!("no preferred addresses found; known addresses: [{wanted}]");
                ApiError::new(500, "", message)
            })?;
        let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok());
        let features = status["declaredFeatures"].as_array();
        Ok(Location {
            host,
            port: port.filter(|port| *port != 0).unwrap_or(PORT),
            tls: true,
            path: "/".to_owned(),
            takes_websockets: features.into_iter().flatten().any(|one| one == WEBSOCKETS),
        })
    }
}

fn host_of<'a>(pod: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    match text(pod, "/spec/nodeName") {
        "" => Err(ApiError::bad_request(format!(
            "pod {name} does not have a host assigned"
        ))),
        node => Ok(node),
    }
}

/// The requested container, or the only one by default.
fn container(pod: &Value, name: &str, asked: &str) -> Result<String, ApiError> {
    let names_of = |list: &str| -> Vec<String> {
        let list = pod["spec"][list].as_array().into_iter().flatten();
        list.map(|one| text(one, "/name").to_owned()).collect()
    };
    let (containers, mut all) = (names_of("containers"), names_of("initContainers"));
    all.extend(containers.iter().cloned());
    all.extend(names_of("ephemeralContainers"));
    if !asked.is_empty() {
        return if all.iter().any(|one| one == asked) {
            Ok(asked.to_owned())
        } else {
            let message = format!("container {asked} is not valid for pod {name}");
            Err(ApiError::bad_request(message))
        };
    }
    match containers.as_slice() {
        [only] => Ok(only.clone()),
        _ => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

fn check_log_options(query: &Query) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (field, least, detail) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
    ] {
        if let Some(number) = query.number(field)
            && number < least
        {
            causes.push(Cause::invalid(field, &json!(number), detail));
        }
    }
    let (seconds, time) = (query.number("sinceSeconds"), query.text("sinceTime"));
    match seconds {
        Some(_) if !time.is_empty() => causes.push(Cause::forbidden(
            "",
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        )),
        Some(seconds) if seconds < 1 => causes.push(Cause::invalid(
            "sinceSeconds",
            &json!(seconds),
            "must be greater than 0",
        )),
        _ => {}
    }
    causes
}

/// Escapes a value of a query.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiServer, target};

    fn server() -> ApiServer {
        let server = ApiServer::start().unwrap();
        let node = json!({"metadata": {"name": "n1"}, "status": {
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
        }});
        server.create("v1", "nodes", "", node).unwrap();
        let containers = json!([{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]);
        for (name, node) in [("web", "n1"), ("waits", "")] {
            let pod = json!({"metadata": {"name": name},
                "spec": {"nodeName": node, "containers": containers}});
            server.create("v1", "pods", "default", pod).unwrap();
        }
        server
    }

    fn of(name: &str, subresource: &str) -> Target {
        let mut target = target("v1", "pods", "default", Some(name)).unwrap();
        subresource.clone_into(&mut target.subresource);
        target
    }

    fn query(text: &str) -> Query {
        Query::of(&format!("/x?{text}").parse().unwrap())
    }

    #[tokio::test]
    async fn requests_go_to_the_pod_s_kubelet() {
        let server = server().0;
        let logs = query(
            "container=a&follow=true&tailLines=5&previous=false&sinceTime=2026-11-01T00:00:00Z",
        );
        let location = server.log_location(&of("web", "log"), &logs).unwrap();
        assert_eq!(
            location.unwrap().url(),
            "https://10.0.0.1:10251/containerLogs/default/web/a?follow=true&sinceTime=2026-11-01T00%3A00%3A00Z&tailLines=5"
        );
        let exec = query(
            "container=b&command=sh&command=-c&command=a%20b&stdin=true&stdout=true&tty=true",
        );
        let location = server.stream_location(&of("web", "exec"), &exec).unwrap();
        assert_eq!(
            location.path,
            "/exec/default/web/b?input=1&output=1&tty=1&command=sh&command=-c&command=a%20b"
        );
        let forward = server
            .port_forward_location(&of("web", "portforward"), &query("ports=80&ports=81"))
            .unwrap();
        assert_eq!(forward.path, "/portForward/default/web?port=80%2C81");
    }

    #[tokio::test]
    async fn a_path_below_a_node_is_handed_on_as_it_is() {
        let server = server().0;
        let mut node = target("v1", "nodes", "", Some("n1")).unwrap();
        let uri: Uri = "/api/v1/nodes/n1/proxy/logs/a%20b/?x=1".parse().unwrap();
        let location = server.node_location(&node, &uri).unwrap();
        assert_eq!(location.url(), "https://10.0.0.1:10251/logs/a%20b/?x=1");
        node.name = Some("n1:10255".to_owned());
        let uri: Uri = "/api/v1/nodes/n1:10255/proxy".parse().unwrap();
        let location = server.node_location(&node, &uri).unwrap();
        assert_eq!(location.url(), "http://10.0.0.1:10255/");
    }

    #[tokio::test]
    async fn what_names_no_container_or_node_is_refused() {
        let server = server().0;
        let refused = |name: &str, text: &str| {
            let refused = server.log_location(&of(name, "log"), &query(text));
            refused.unwrap_err().message
        };
        assert_eq!(
            refused("web", ""),
            "a container name must be specified for pod web, choose one of: [a b]"
        );
        assert_eq!(
            refused("web", "container=c"),
            "container c is not valid for pod web"
        );
        assert_eq!(
            refused("web", "container=a&tailLines=-1"),
            "PodLogOptions \"web\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"
        );
        let nowhere = server.log_location(&of("waits", "log"), &query("container=a"));
        assert!(nowhere.unwrap().is_none());
        let exec = server.stream_location(&of("waits", "exec"), &query("container=a"));
        assert_eq!(
            exec.unwrap_err().message,
            "pod waits does not have a host assigned"
        );
    }
}
