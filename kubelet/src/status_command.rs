//! `kubelet status`: prints the pods of the running kubelet and the scarce resources of its node,
//! without an API server.

mod pod_status;
mod pressure;
mod table;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, Response, StatusCode, Uri, body::Incoming, client::conn::http1, header::HOST,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kubelet_host::clock;
use kubelet_pod_spec::json;
use kubelet_server::{
    reports::{PRESSURE_PATH, PressureReport},
    socket_path,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time,
};

/// The path of the pods.
const PODS: &str = "/pods";
/// The host in requests to the socket.
const LOCALHOST: &str = "localhost";
/// Deadline of the kubelet's response.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes.
const MAX_BODY: usize = 256 << 20;

/// The kubelet to query, and what to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusOptions {
    /// Root directory of the running kubelet.
    pub root_dir: PathBuf,
    /// URL of its read-only port; its socket is used when unset.
    pub kubelet_address: Option<String>,
    /// Only pods of this namespace.
    pub namespace: Option<String>,
    /// The output format.
    pub output: OutputFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// One line per pod.
    Table,
    /// One line per pod with more columns.
    Wide,
    /// The API's own JSON.
    Json,
}

/// Why the pods cannot be printed.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No server listens.
    #[error("cannot connect to the kubelet at {address}: {source}\n{hint}")]
    NotRunning {
        /// The socket or address.
        address: String,
        /// The cause.
        source: io::Error,
        /// Advice for the user.
        hint: &'static str,
    },
    /// The address is not a valid URL.
    #[error(
        "--kubelet-address: invalid value {address:?}: must be an http URL, such as http://127.0.0.1:10255"
    )]
    Address {
        /// The address.
        address: String,
    },
    /// The response is not a kubelet's.
    #[error("unexpected response from the kubelet at {address}: {reason}")]
    Answer {
        /// The socket or address.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// Queries the kubelet, and returns the text to print.
///
/// # Errors
/// The kubelet does not respond, or not with pods; the error includes advice.
pub async fn run(options: &StatusOptions) -> Result<String, StatusError> {
    let address = options
        .kubelet_address
        .clone()
        .unwrap_or_else(|| socket_path(&options.root_dir).display().to_string());
    let answer = |reason: String| StatusError::Answer {
        address: address.clone(),
        reason,
    };
    let body = match &options.kubelet_address {
        Some(url) => {
            let authority = authority(url)?;
            let stream =
                TcpStream::connect(&authority)
                    .await
                    .map_err(|source| StatusError::NotRunning {
                        address: address.clone(),
                        source,
                        hint: "Start the kubelet with --read-only-port to query it there.",
                    })?;
            read(stream, &authority, PODS).await
        }
        None => read(connect(&options.root_dir).await?, LOCALHOST, PODS).await,
    }
    .map_err(answer)?;
    let mut text = print(&body, options).map_err(|error| answer(error.to_string()))?;
    if options.kubelet_address.is_none() && options.output != OutputFormat::Json {
        let report = ask::<PressureReport>(&options.root_dir, PRESSURE_PATH).await?;
        text += &pressure::lines(&report, options.namespace.as_deref(), clock::now());
    }
    Ok(text)
}

/// Connects to the socket of the kubelet with this root directory.
pub(crate) async fn connect(root_dir: &Path) -> Result<UnixStream, StatusError> {
    let path = socket_path(root_dir);
    UnixStream::connect(&path)
        .await
        .map_err(|source| StatusError::NotRunning {
            address: path.display().to_string(),
            source,
            hint: "Start the kubelet, or pass the --root-dir that it was started with; only the \
                   kubelet's own user has access.",
        })
}

/// The pods of the kubelet with this root directory.
pub(crate) async fn pods(root_dir: &Path) -> Result<Vec<Pod>, StatusError> {
    Ok(ask::<PodList>(root_dir, PODS).await?.items)
}

/// Asks the kubelet with this root directory for what it has at a path.
pub(crate) async fn ask<T: DeserializeOwned>(
    root_dir: &Path,
    path: &str,
) -> Result<T, StatusError> {
    let answer = |reason: String| StatusError::Answer {
        address: socket_path(root_dir).display().to_string(),
        reason,
    };
    let stream = connect(root_dir).await?;
    let body = read(stream, LOCALHOST, path).await.map_err(answer)?;
    json::from_slice(&body).map_err(|error| answer(error.to_string()))
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

fn authority(url: &str) -> Result<String, StatusError> {
    let fault = || StatusError::Address {
        address: url.to_owned(),
    };
    let uri: Uri = url.parse().map_err(|_| fault())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(host)) => Ok(format!("{host}:{}", uri.port_u16().unwrap_or(10255))),
        _ => Err(fault()),
    }
}

async fn read<S>(stream: S, host: &str, path: &str) -> Result<Bytes, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchange = async {
        let response = get(stream, host, path).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("HTTP status {}", response.status()));
        }
        Limited::new(response.into_body(), MAX_BODY)
            .collect()
            .await
            .map(|body| body.to_bytes())
            .map_err(|error| error.to_string())
    };
    time::timeout(DEADLINE, exchange)
        .await
        .unwrap_or_else(|_| Err(format!("no response within {DEADLINE:?}")))
}

/// Requests a path from a server, and returns the response without waiting for its body.
pub(crate) async fn get<S>(stream: S, host: &str, path: &str) -> Result<Response<Incoming>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Ends with the sender; its errors fail the request too.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let request = Request::get(path)
        .header(HOST, host)
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    sender
        .send_request(request)
        .await
        .map_err(|error| error.to_string())
}

fn print(body: &[u8], options: &StatusOptions) -> Result<String, serde_json::Error> {
    let wanted = |namespace: Option<&str>| {
        options
            .namespace
            .as_deref()
            .is_none_or(|wanted| namespace == Some(wanted))
    };
    if options.output == OutputFormat::Json {
        let mut list: Value = json::from_slice(body)?;
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(|pod| wanted(pod["metadata"]["namespace"].as_str()));
        }
        return serde_json::to_string_pretty(&list).map(|text| text + "\n");
    }
    let mut pods = json::from_slice::<PodList>(body)?.items;
    pods.retain(|pod| wanted(pod.metadata.namespace.as_deref()));
    Ok(table::table(
        &mut pods,
        options.output == OutputFormat::Wide,
        clock::now(),
    ))
}
