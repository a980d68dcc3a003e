//! `/checkpoint/{namespace}/{pod}/{container}`: writes a checkpoint of a container to a file.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path as FilePath, PathBuf},
};

use axum::{
    Router,
    extract::{Path, Query},
    http::StatusCode,
    response::Response,
    routing::post,
};
use cri_proto::runtime::v1::CheckpointContainerRequest;
use kubelet_host::{clock, repeatable::blocking};
use kubelet_pod_spec::identity;
use serde_json::json;

use super::{
    NodeView,
    response::{json as json_answer, text},
    target,
};

pub(super) fn routes<V: NodeView>(view: V, root_dir: PathBuf) -> Router {
    let dir = root_dir.join("checkpoints");
    let checkpoint = post(
        move |Path((namespace, pod, container)): Path<(String, String, String)>,
              Query(parameters): Query<Vec<(String, String)>>| async move {
            let target = [&*namespace, &*pod, &*container];
            match checkpoint(&view, dir, target, &parameters).await {
                Ok(location) => {
                    json_answer(json!({"items": [location.to_string_lossy()]}).to_string())
                }
                Err(refusal) => *refusal,
            }
        },
    );
    Router::new().route("/checkpoint/{namespace}/{pod}/{container}", checkpoint)
}

async fn checkpoint<V: NodeView>(
    view: &V,
    dir: PathBuf,
    [namespace, name, container]: [&str; 3],
    parameters: &[(String, String)],
) -> Result<PathBuf, Box<Response>> {
    let not_found = |reason: String| Box::new(text(StatusCode::NOT_FOUND, reason));
    let pod = target::pod(view, namespace, name)?;
    if !identity::has_container(&pod, container) {
        return Err(not_found(format!("container {container} does not exist")));
    }
    let timeout = parameters.iter().rfind(|(name, _)| name == "timeout");
    let timeout = match timeout.map(|(_, value)| value.parse::<i64>()) {
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            return Err(not_found(
                "cannot parse value of timeout parameter".to_owned(),
            ));
        }
        None => 0,
    };
    let failed = |reason: String| {
        let reason = format!("checkpointing of {namespace}/{name}/{container} failed ({reason})");
        Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, reason))
    };
    if timeout < 0 {
        return Err(failed("timeout: must be > 0".to_owned()));
    }
    let container_id = target::running_container(view, &pod, container)
        .await
        .map_err(|error| failed(error.to_string()))?
        .ok_or_else(|| failed(format!("container {container} not found")))?;
    let made = {
        let dir = dir.clone();
        blocking(move || make(&dir)).await
    };
    made.map_err(io::Error::other)
        .flatten()
        .map_err(|error| failed(format!("cannot make {}: {error}", dir.display())))?;
    let location = dir.join(format!(
        "checkpoint-{}-{container}-{:.0}.tar",
        identity::full_name(&pod),
        clock::now()
    ));
    view.cri()
        .checkpoint_container(CheckpointContainerRequest {
            container_id,
            location: location.to_string_lossy().into_owned(),
            timeout,
        })
        .await
        .map_err(|error| failed(error.to_string()))?;
    Ok(location)
}

/// Only root may read checkpoints: they contain the memory of containers.
fn make(dir: &FilePath) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}
