//! Lists: filtered by selectors, and in chunks if the caller sets a limit.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    Server,
    errors::ApiError,
    event_versions::to_shown,
    request::{Query, Target},
    storage::Key,
    strategy::{remove, text},
    verbs::too_old,
};

impl Server {
    /// A list, or one chunk of it.
    pub(super) fn list(&self, target: &Target, query: &Query) -> Result<Value, ApiError> {
        let selectors = target.selectors(query)?;
        let storage = self.storage.lock();
        let mut revision = storage.revision();
        let mut after = None;
        let token = query.text("continue");
        if !token.is_empty() {
            let (begun, last) = read_continue(token)?;
            if begun < storage.compacted() {
                return Err(ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
                ));
            }
            revision = begun;
            after = Some(last);
        } else if let Ok(wanted) = query.text("resourceVersion").parse::<u64>() {
            if wanted > revision {
                return Err(too_large(wanted, revision));
            }
            if query.text("resourceVersionMatch") == "Exact" && wanted < storage.compacted() {
                return Err(too_old(wanted, storage.compacted()));
            }
        }
        let mut selected: Vec<(Key, Arc<Value>)> = storage
            .list(target.resource, target.namespace.as_deref())
            .into_iter()
            .filter(|(key, _)| after.as_ref().is_none_or(|last| *key > last.key(target)))
            .filter(|(_, object)| selectors.match_object(object))
            .collect();
        drop(storage);
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let limit = query
            .number("limit")
            .and_then(|limit| usize::try_from(limit).ok());
        if let Some(limit) = limit.filter(|limit| *limit > 0 && *limit < selected.len()) {
            let remaining = selected.split_off(limit).len();
            if let Some((last, _)) = selected.last() {
                metadata["continue"] = json!(write_continue(revision, last));
            }
            metadata["remainingItemCount"] = json!(remaining);
        }
        let items: Vec<Value> = selected
            .iter()
            .map(|(_, object)| {
                let mut shown = to_shown(target.resource, object);
                // As upstream: list items have neither kind nor API version.
                remove(&mut shown, "kind");
                remove(&mut shown, "apiVersion");
                shown
            })
            .collect();
        Ok(json!({
            "kind": format!("{}List", target.resource.kind),
            "apiVersion": target.resource.api_version(),
            "metadata": metadata,
            "items": items,
        }))
    }
}

fn too_large(wanted: u64, newest: u64) -> ApiError {
    let mut error = ApiError::new(
        504,
        "Timeout",
        format!("Too large resource version: {wanted}, current: {newest}"),
    );
    error.details = Some(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }));
    error
}

struct ContinueKey {
    namespace: String,
    name: String,
}

impl ContinueKey {
    fn key(&self, target: &Target) -> Key {
        Key::new(target.resource, &self.namespace, &self.name)
    }
}

fn write_continue(revision: u64, last: &Key) -> String {
    let token = json!({"rv": revision, "namespace": last.namespace, "name": last.name});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

fn read_continue(token: &str) -> Result<(u64, ContinueKey), ApiError> {
    let bad = || ApiError::bad_request("continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let last = ContinueKey {
        namespace: text(&token, "/namespace").to_owned(),
        name: text(&token, "/name").to_owned(),
    };
    Ok((token["rv"].as_u64().ok_or_else(bad)?, last))
}
