//! `/statusz` and `/flagz`: what this process is, and the values of its flags. As text, or as JSON
//! for requests that accept `application/json;as=Statusz;v=v1beta1;g=config.k8s.io`.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
    routing::get,
};
use jiff::{Timestamp, tz::TimeZone};
use kubelet_host::{clock, version};
use serde_json::{Value, json};

use super::response::{error, json as json_response, text};

const COMPONENT: &str = "kubelet";
const GROUP: &str = "config.k8s.io";
const VERSION: &str = "v1beta1";
const DEPRECATED_VERSION: &str = "v1alpha1";

/// First parts of the paths of the secure port, which `/statusz` lists.
const PATHS: [&str; 16] = [
    "/attach",
    "/checkpoint",
    "/configz",
    "/containerLogs",
    "/debug",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/stats",
    "/statusz",
];

/// A form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json { version: &'static str },
}

pub(super) fn statusz_routes() -> Router {
    let started = clock::now();
    let page = move |headers: HeaderMap| async move {
        respond("Statusz", &headers, |form| statusz(form, started))
    };
    Router::new().route("/statusz", get(page))
}

pub(super) fn flagz_routes(flags: BTreeMap<String, String>) -> Router {
    let flags = Arc::new(flags);
    let page = move |headers: HeaderMap| async move {
        respond("Flagz", &headers, |form| flagz(form, &flags))
    };
    Router::new().route("/flagz", get(page))
}

/// The page of a kind in the form that the client accepts.
fn respond(kind: &str, headers: &HeaderMap, page: impl FnOnce(Form) -> Page) -> Response {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let Some(form) = negotiated(accept.unwrap_or_default(), kind) else {
        return error(
            StatusCode::NOT_ACCEPTABLE,
            format_args!(
                "only the following media types are accepted: text/plain, \
                 application/json;as={kind};v={VERSION};g={GROUP}"
            ),
        );
    };
    let mut response = match page(form) {
        Page::Text(body) => text(StatusCode::OK, body),
        Page::Json(mut body) => {
            if let Form::Json { version } = form {
                body["kind"] = kind.into();
                body["apiVersion"] = format!("{GROUP}/{version}").into();
                body["metadata"] = json!({"name": COMPONENT});
            }
            json_response(body.to_string())
        }
    };
    if let Form::Json { version } = form
        && version == DEPRECATED_VERSION
    {
        let endpoint = kind.to_lowercase();
        let warning = format!(
            "299 - \"This version of the {endpoint} endpoint is deprecated. Please use a newer version.\""
        );
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            response.headers_mut().insert(header::WARNING, warning);
        }
    }
    response
}

/// The first form in an `Accept` header that exists.
fn negotiated(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> =
            parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |name: &str| parameters.get(name).copied();
        match media_type {
            "text/plain" | "text/*" | "*/*" if parameter("as").is_none() => Some(Form::Text),
            "application/json" | "application/*"
                if parameter("as") == Some(kind) && parameter("g") == Some(GROUP) =>
            {
                let known = [VERSION, DEPRECATED_VERSION];
                let version = known
                    .into_iter()
                    .find(|known| parameter("v") == Some(known));
                version.map(|version| Form::Json { version })
            }
            _ => None,
        }
    })
}

enum Page {
    Text(String),
    Json(Value),
}

fn statusz(form: Form, started: Timestamp) -> Page {
    let up = clock::now().duration_since(started).as_secs().max(0);
    let binary_version = version::VERSION.trim_start_matches('v');
    match form {
        Form::Text => {
            let started = started.to_zoned(TimeZone::UTC);
            let started = started.strftime("%a %b %e %H:%M:%S UTC %Y");
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            Page::Text(format!(
                "{}Started: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Binary version: {binary_version}\nEmulation version: {}\nPaths: {}\n",
                heading("statusz"),
                version::MAJOR_MINOR,
                PATHS.join(" "),
            ))
        }
        Form::Json { .. } => Page::Json(json!({
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": up,
            // The format requires it, and there is none.
            "goVersion": "",
            "binaryVersion": binary_version,
            "emulationVersion": version::MAJOR_MINOR,
            "paths": PATHS,
        })),
    }
}

fn flagz(form: Form, flags: &BTreeMap<String, String>) -> Page {
    match form {
        Form::Text => {
            let lines = flags
                .iter()
                .map(|(name, value)| format!("{name}={value}\n"));
            Page::Text(heading("flagz") + &lines.collect::<String>())
        }
        Form::Json { .. } => Page::Json(json!({ "flags": flags })),
    }
}

fn heading(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no \
         formatting compatibility guarantees and is for debugging purposes only.\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses_the_form() {
        let json = |version| Some(Form::Json { version });
        for (accept, form) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain; charset=utf-8", Some(Form::Text)),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                json(VERSION),
            ),
            (
                "application/json; as=Statusz; v=v1alpha1; g=config.k8s.io",
                json(DEPRECATED_VERSION),
            ),
            (
                "application/json;v=v1;g=config.k8s.io;as=Statusz, text/plain",
                Some(Form::Text),
            ),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("image/png", None),
        ] {
            assert_eq!(negotiated(accept, "Statusz"), form, "{accept:?}");
        }
    }
}
