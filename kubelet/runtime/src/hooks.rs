//! Lifecycle hooks of containers: `postStart` and `preStop`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{CriClient, CriError, KEPT_OUTPUT};
use kubelet_metrics::{Collector, Counter, Exposition, Family};
use kubelet_prober::http::{self, HttpError, HttpGet};
use tracing::warn;

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("exec {command:?}: {source}")]
    Exec {
        /// The command.
        command: Vec<String>,
        /// The error.
        source: CriError,
    },
    /// The command exited with a non-zero code.
    #[error("command {command:?} exited with {code}: {output}")]
    Failed {
        /// The command.
        command: Vec<String>,
        /// Its exit code.
        code: i32,
        /// Its output.
        output: String,
    },
    /// The request failed.
    #[error("GET {url}: {reason}")]
    Http {
        /// URL of the request; only the path if there is no valid URL.
        url: String,
        /// The error.
        reason: String,
    },
    /// The hook has no supported action. `tcpSocket` is accepted, but not executed.
    #[error("invalid handler: it must have exec, httpGet or sleep")]
    NoAction,
}

/// What hooks count.
#[derive(Debug)]
pub struct HookMetrics {
    http_fallbacks: Family<Counter, 0>,
    interrupted_sleeps: Family<Counter, 0>,
}

impl Default for HookMetrics {
    fn default() -> Self {
        Self {
            http_fallbacks: Family::counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
                [],
            ),
            interrupted_sleeps: Family::counter(
                "kubelet_sleep_action_terminated_early_total",
                "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
                [],
            ),
        }
    }
}

impl Collector for HookMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.http_fallbacks.collect(page);
        self.interrupted_sleeps.collect(page);
    }
}

/// A sleep that counts as interrupted if it is dropped before it is over.
struct Sleep<'a> {
    metrics: &'a HookMetrics,
    is_over: bool,
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.metrics.interrupted_sleeps.of([]).increment();
        }
    }
}

/// The type of the hook's action, for people.
pub const fn kind(hook: &LifecycleHandler) -> &'static str {
    if hook.exec.is_some() {
        "Exec"
    } else if hook.http_get.is_some() {
        "HTTP"
    } else if hook.sleep.is_some() {
        "Sleep"
    } else {
        "Unknown"
    }
}

/// How a hook succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Success {
    /// As its handler says.
    AsAsked,
    /// It was to be sent over TLS, and was answered over plain HTTP.
    OverPlainHttp {
        /// Host and port.
        address: String,
    },
}

impl Success {
    /// Records what the owner of `pod` should know.
    pub fn record(&self, events: &EventRecorder, pod: &Pod) {
        if let Self::OverPlainHttp { address } = self {
            let message = format_args!(
                "request to HTTPS lifecycle hook {address} got HTTP response, \
                 retry with HTTP succeeded"
            );
            let subject = Subject::Pod(pod);
            events.warning(subject, reason::LIFECYCLE_HTTP_FALLBACK, message);
        }
    }
}

/// Runs a hook. `ip` is the IP address of the pod. `limit` bounds a command or request in addition
/// to the caller's deadline; zero means no limit.
///
/// # Errors
/// See [`HookError`].
pub async fn run(
    cri: &CriClient,
    container_id: &str,
    container: Option<&Container>,
    ip: Option<&str>,
    hook: &LifecycleHandler,
    limit: Duration,
    metrics: &HookMetrics,
) -> Result<Success, HookError> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        exec_sync(cri, container_id, command, limit).await?;
        return Ok(Success::AsAsked);
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        let mut sleeping = Sleep {
            metrics,
            is_over: false,
        };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        sleeping.is_over = true;
        return Ok(Success::AsAsked);
    }
    if let Some(get) = &hook.http_get {
        let limit = if limit.is_zero() {
            Duration::MAX
        } else {
            limit
        };
        return http_get(get, container, ip, limit, metrics).await;
    }
    Err(HookError::NoAction)
}

async fn exec_sync(
    cri: &CriClient,
    container_id: &str,
    command: Vec<String>,
    limit: Duration,
) -> Result<(), HookError> {
    match cri.exec_sync(container_id, command.clone(), limit).await {
        Ok(answer) if answer.exit_code == 0 => Ok(()),
        Ok(answer) => {
            let mut output: Vec<u8> = [answer.stdout, answer.stderr].concat();
            output.truncate(KEPT_OUTPUT);
            Err(HookError::Failed {
                command,
                code: answer.exit_code,
                output: String::from_utf8_lossy(&output).trim().to_owned(),
            })
        }
        Err(source) => Err(HookError::Exec { command, source }),
    }
}

async fn http_get(
    get: &HTTPGetAction,
    container: Option<&Container>,
    ip: Option<&str>,
    limit: Duration,
    metrics: &HookMetrics,
) -> Result<Success, HookError> {
    let host = get.host.as_deref().filter(|host| !host.is_empty()).or(ip);
    let path = get.path.as_deref().unwrap_or("/");
    let failed = |url: String, reason: String| HookError::Http { url, reason };
    let Some(host) = host else {
        return Err(failed(path.to_owned(), "the pod has no address".to_owned()));
    };
    let request = HttpGet::new(get, container, host, "lifecycle")
        .map_err(|error| failed(path.to_owned(), error.to_string()))?;
    let mut answer = http::http_get(&request, limit).await;
    let mut success = Success::AsAsked;
    if matches!(answer, Err(HttpError::PlainHttp(_))) {
        // As upstream: hooks were once sent without TLS, whatever their scheme.
        let plain = http::http_get(&request.without_tls(), limit).await;
        if plain.is_ok() {
            warn!(url = %request.url(), "an HTTPS hook succeeded only over plain HTTP");
            metrics.http_fallbacks.of([]).increment();
            answer = plain;
            success = Success::OverPlainHttp {
                address: request.url().authority(),
            };
        }
    }
    // Any response counts as success, whatever its status.
    match answer {
        Ok(_) | Err(HttpError::Body { .. }) => Ok(success),
        Err(error) => Err(failed(request.url().to_string(), error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::ContainerPort, apimachinery::pkg::util::intstr::IntOrString};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_request_goes_to_the_named_port_of_the_pod() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            let answer = b"HTTP/1.1 500 x\r\ncontent-length: 2\r\n\r\nno";
            stream.write_all(answer).await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("web".to_owned()),
                container_port: port.into(),
                ..ContainerPort::default()
            }]),
            ..Container::default()
        };
        let get = HTTPGetAction {
            path: Some("/stop?now".to_owned()),
            port: IntOrString::String("web".to_owned()),
            ..HTTPGetAction::default()
        };
        http_get(
            &get,
            Some(&container),
            Some("127.0.0.1"),
            LIMIT,
            &HookMetrics::default(),
        )
        .await
        .unwrap();
        let request = server.await.unwrap();
        assert!(request.starts_with("GET /stop?now HTTP/1.1"));
        assert!(request.contains("user-agent: kube-lifecycle/1.36\r\n"));
    }

    #[tokio::test]
    async fn nobody_listening_is_an_error_with_the_url() {
        let get = HTTPGetAction {
            port: IntOrString::Int(1),
            ..HTTPGetAction::default()
        };
        let error = http_get(
            &get,
            None,
            Some("127.0.0.1"),
            LIMIT,
            &HookMetrics::default(),
        )
        .await
        .unwrap_err();
        assert!(error.to_string().starts_with("GET http://127.0.0.1:1/: "));
    }

    #[tokio::test]
    async fn https_falls_back_where_the_server_has_none() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut first_words = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                let answer = b"HTTP/1.1 400 x\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                first_words.push(String::from_utf8_lossy(&request[..length.min(4)]).into_owned());
            }
            first_words
        });
        let get = HTTPGetAction {
            scheme: Some("HTTPS".to_owned()),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        };
        let metrics = HookMetrics::default();
        let success = http_get(&get, None, Some("127.0.0.1"), LIMIT, &metrics).await;
        let (events, mut queue) = EventRecorder::new("node");
        success.unwrap().record(&events, &Pod::default());
        let event = queue.try_recv().unwrap();
        let message = format!(
            "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, \
             retry with HTTP succeeded"
        );
        assert_eq!(event.message, Some(message));
        assert_eq!(server.await.unwrap()[1], "GET ");
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        let line = "\nkubelet_lifecycle_handler_http_fallbacks_total 1\n";
        assert!(text.contains(line), "{text}");
    }
}
