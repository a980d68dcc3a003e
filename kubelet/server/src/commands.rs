//! `/run`: runs a command in a container and returns the output after it has ended.

use std::time::Duration;

use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    response::Response,
    routing::{MethodRouter, post},
};

use super::{
    NodeView,
    body_guard::attach_to_body,
    bounds::Gate,
    long_query::Parameters,
    response::{json, text},
    target,
};

pub(super) fn routes<V: NodeView>(view: V, gate: &Gate) -> Router {
    let handler = run(view, gate.clone());
    Router::new()
        .route("/run/{namespace}/{pod}/{last}", handler.clone())
        .route("/run/{namespace}/{pod}/{uid}/{last}", handler)
}

fn run<V: NodeView>(view: V, gate: Gate) -> MethodRouter {
    post(
        move |Path(path): Path<Vec<String>>, parameters: Parameters| async move {
            let place = match gate.enter() {
                Ok(place) => place,
                Err(refusal) => return *refusal,
            };
            let command = parameters.pairs.iter().find(|(name, _)| name == "cmd");
            let command = command.map_or("", |(_, value)| value);
            match output(&view, &path, command).await {
                Ok(output) => attach_to_body(json(output), place),
                Err(refusal) => *refusal,
            }
        },
    )
}

/// The output of a command. There is no time limit except the client's patience.
async fn output<V: NodeView>(
    view: &V,
    path: &[String],
    command: &str,
) -> Result<Vec<u8>, Box<Response>> {
    let failed = |reason: String| Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, reason));
    let (namespace, name, uid, container) = match path {
        [namespace, name, container] => (namespace, name, None, container),
        [namespace, name, uid, container] => (namespace, name, Some(uid.as_str()), container),
        _ => return Err(failed("404 page not found".to_owned())),
    };
    let pod = target::pod(view, namespace, name)?;
    let found = if target::is_another(&pod, uid) {
        None
    } else {
        target::running_container(view, &pod, container)
            .await
            .map_err(|error| failed(error.to_string()))?
    };
    let id = found.ok_or_else(|| failed(format!("container not found ({container:?})")))?;
    let words = command.split(' ').map(str::to_owned).collect();
    let result = view
        .cri()
        .exec_sync_whole(&id, words, Duration::ZERO)
        .await
        .map_err(|error| failed(error.to_string()))?;
    if result.exit_code != 0 {
        let stderr = String::from_utf8_lossy(&result.stderr);
        let code = result.exit_code;
        return Err(failed(format!(
            "command '{command}' exited with {code}: {stderr}"
        )));
    }
    let mut output = result.stdout;
    output.extend_from_slice(&result.stderr);
    Ok(output)
}
