//! `/exec`, `/attach` and `/portForward`, with and without the pod's UID. The runtime returns the
//! URL of its streaming server, and the request is proxied there unchanged.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Request},
    http::{HeaderValue, StatusCode, header},
    response::Response,
    routing::{MethodRouter, get},
};
use cri_proto::runtime::v1::{AttachRequest, ExecRequest, PodSandboxState, PortForwardRequest};
use kubelet_cri_client::CriError;
use kubelet_pod_spec::identity::{self, PodUid};

use super::{
    NodeView,
    bounds::{Gate, Gates},
    long_query::Parameters,
    response::text,
    streaming_server::StreamingServer,
    target,
};

/// Seconds until a client may retry when the runtime has no capacity: the lifetime of its tokens.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("60");

#[derive(Clone, Copy)]
enum Verb {
    Exec,
    Attach,
}

pub(super) fn routes<V: NodeView>(view: V, server: Arc<StreamingServer>, gates: &Gates) -> Router {
    let mut routes = Router::new();
    for (base, verb, gate) in [
        ("/exec", Verb::Exec, &gates.commands),
        ("/attach", Verb::Attach, &gates.attached),
    ] {
        let handler = container(verb, view.clone(), Arc::clone(&server), gate.clone());
        routes = routes
            .route(
                &format!("{base}/{{namespace}}/{{pod}}/{{last}}"),
                handler.clone(),
            )
            .route(
                &format!("{base}/{{namespace}}/{{pod}}/{{uid}}/{{last}}"),
                handler,
            );
    }
    let handler = ports(view, server, gates.port_forwards.clone());
    routes
        .route("/portForward/{namespace}/{pod}", handler.clone())
        .route("/portForward/{namespace}/{pod}/{uid}", handler)
}

fn container<V: NodeView>(
    verb: Verb,
    view: V,
    server: Arc<StreamingServer>,
    gate: Gate,
) -> MethodRouter {
    let handler = move |Path(path): Path<Vec<String>>, parameters: Parameters, request: Request| async move {
        let place = match gate.enter() {
            Ok(place) => place,
            Err(refusal) => return *refusal,
        };
        match container_url(verb, &view, &path, &parameters.pairs).await {
            Ok(url) => server.forward(request, &url, place).await,
            Err(refusal) => *refusal,
        }
    };
    get(handler.clone()).post(handler)
}

fn ports<V: NodeView>(view: V, server: Arc<StreamingServer>, gate: Gate) -> MethodRouter {
    let handler = move |Path(path): Path<Vec<String>>, parameters: Parameters, request: Request| async move {
        let place = match gate.enter() {
            Ok(place) => place,
            Err(refusal) => return *refusal,
        };
        let is_websocket = request
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
        let is_tunnel = request
            .headers()
            .get_all(header::SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .any(|value| {
                value
                    .to_str()
                    .is_ok_and(|names| names.contains("SPDY/3.1+"))
            });
        let wanted = if is_websocket && !is_tunnel {
            websocket_ports(&parameters.pairs)
        } else {
            Ok(Vec::new())
        };
        match ports_url(&view, &path, wanted).await {
            Ok(url) => server.forward(request, &url, place).await,
            Err(refusal) => *refusal,
        }
    };
    get(handler.clone()).post(handler)
}

async fn container_url<V: NodeView>(
    verb: Verb,
    view: &V,
    path: &[String],
    parameters: &[(String, String)],
) -> Result<String, Box<Response>> {
    let wants = StreamOptions::of(parameters)
        .map_err(|reason| Box::new(text(StatusCode::BAD_REQUEST, reason.to_owned())))?;
    let (namespace, name, uid, container) = match path {
        [namespace, name, container] => (namespace, name, None, container),
        [namespace, name, uid, container] => (namespace, name, Some(uid.as_str()), container),
        _ => {
            return Err(Box::new(text(
                StatusCode::NOT_FOUND,
                "404 page not found".to_owned(),
            )));
        }
    };
    let pod = target::pod(view, namespace, name)?;
    let found = if target::is_another(&pod, uid) {
        None
    } else {
        target::running_container(view, &pod, container)
            .await
            .map_err(refused)?
    };
    let Some(container_id) = found else {
        let reason = format!("container not found ({container:?})");
        return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, reason)));
    };
    let StreamOptions {
        stdin,
        stdout,
        stderr,
        tty,
    } = wants;
    let cri = view.cri();
    let url = match verb {
        Verb::Exec => {
            let cmd = values(parameters, "command").map(str::to_owned).collect();
            cri.exec(ExecRequest {
                container_id,
                cmd,
                tty,
                stdin,
                stdout,
                stderr,
            })
            .await
        }
        Verb::Attach => {
            cri.attach(AttachRequest {
                container_id,
                stdin,
                // The container's TTY was decided at its start.
                tty: target::has_terminal(&pod, container),
                stdout,
                stderr,
            })
            .await
        }
    };
    url.map_err(refused)
}

async fn ports_url<V: NodeView>(
    view: &V,
    path: &[String],
    ports: Result<Vec<i32>, String>,
) -> Result<String, Box<Response>> {
    let port = ports.map_err(|reason| Box::new(text(StatusCode::BAD_REQUEST, reason)))?;
    let (namespace, name, uid) = match path {
        [namespace, name] => (namespace, name, None),
        [namespace, name, uid] => (namespace, name, Some(uid.as_str())),
        _ => {
            return Err(Box::new(text(
                StatusCode::NOT_FOUND,
                "404 page not found".to_owned(),
            )));
        }
    };
    let pod = target::pod(view, namespace, name)?;
    if target::is_another(&pod, uid) {
        return Err(Box::new(text(
            StatusCode::NOT_FOUND,
            "pod not found".to_owned(),
        )));
    }
    let cri = view.cri();
    let sandboxes = cri
        .list_pod_sandboxes_of(&PodUid::of(&pod))
        .await
        .map_err(refused)?;
    let newest = sandboxes
        .into_iter()
        .filter(|sandbox| sandbox.state() == PodSandboxState::SandboxReady)
        .max_by_key(|sandbox| sandbox.created_at);
    let Some(sandbox) = newest else {
        let reason = format!(
            "failed to find sandbox for pod {}",
            identity::name_with_uid(&pod)
        );
        return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, reason)));
    };
    cri.port_forward(PortForwardRequest {
        pod_sandbox_id: sandbox.id,
        port,
    })
    .await
    .map_err(refused)
}

/// The response to the client if the runtime returns no URL.
fn refused(error: CriError) -> Box<Response> {
    let code = match &error {
        CriError::Status { status, .. } => status.code(),
        _ => tonic::Code::Unknown,
    };
    let status = match code {
        tonic::Code::NotFound => StatusCode::NOT_FOUND,
        tonic::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = text(status, error.to_string());
    if status == StatusCode::TOO_MANY_REQUESTS {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    Box::new(response)
}

/// The requested streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamOptions {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl StreamOptions {
    fn of(parameters: &[(String, String)]) -> Result<Self, &'static str> {
        let is_set = |name: &str| values(parameters, name).next() == Some("1");
        let tty = is_set("tty");
        let wants = Self {
            stdin: is_set("input"),
            stdout: is_set("output"),
            // A TTY has one stream for both.
            stderr: is_set("error") && !tty,
            tty,
        };
        if wants.stdin || wants.stdout || wants.stderr {
            Ok(wants)
        } else {
            Err("you must specify at least 1 of stdin, stdout, stderr")
        }
    }
}

fn values<'a>(parameters: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = parameters.iter().filter(move |(key, _)| key == name);
    named.map(|(_, value)| value.as_str())
}

/// The ports that a WebSocket client requests. The protocol needs them in advance.
fn websocket_ports(parameters: &[(String, String)]) -> Result<Vec<i32>, String> {
    let mut ports = Vec::new();
    for text in values(parameters, "port").flat_map(|list| list.split(',')) {
        match text.parse::<u16>() {
            Ok(0) => return Err(format!("port {text:?} must be > 0")),
            Ok(port) => ports.push(i32::from(port)),
            Err(error) => return Err(format!("unable to parse {text:?} as a port: {error}")),
        }
    }
    if ports.is_empty() {
        return Err("query parameter \"port\" is required".to_owned());
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_terminal_has_no_stream_for_errors() {
        let wants = StreamOptions::of(&parameters(&[
            ("output", "1"),
            ("error", "1"),
            ("tty", "1"),
        ]));
        assert_eq!(
            wants,
            Ok(StreamOptions {
                stdin: false,
                stdout: true,
                stderr: false,
                tty: true
            })
        );
        assert!(StreamOptions::of(&parameters(&[("tty", "1"), ("error", "1")])).is_err());
        assert!(StreamOptions::of(&parameters(&[("output", "true")])).is_err());
    }

    #[test]
    fn websocket_clients_say_their_ports() {
        let ports = |list| websocket_ports(&parameters(list));
        assert_eq!(
            ports(&[("port", "80,443"), ("port", "22")]),
            Ok(vec![80, 443, 22])
        );
        assert!(ports(&[]).unwrap_err().contains("required"));
        assert!(ports(&[("port", "0")]).unwrap_err().contains("> 0"));
        assert!(
            ports(&[("port", "x")])
                .unwrap_err()
                .contains("unable to parse")
        );
    }
}
