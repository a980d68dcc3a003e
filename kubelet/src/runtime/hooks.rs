//! Lifecycle hooks of containers: `postStart` and `preStop`.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, LifecycleHandler},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::net::TcpStream;

use super::cri::{CriClient, CriError};

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("exec {command:?}: {source}")]
    Exec {
        /// The command.
        command: Vec<String>,
        /// Why not.
        source: CriError,
    },
    /// The command ended with another code than 0.
    #[error("command {command:?} exited with {code}: {output}")]
    Failed {
        /// The command.
        command: Vec<String>,
        /// Its exit code.
        code: i32,
        /// What it printed.
        output: String,
    },
    /// The request failed.
    #[error("GET {url}: {reason}")]
    Http {
        /// What was asked for.
        url: String,
        /// Why it failed.
        reason: String,
    },
    /// The hook names no action that is ever done: `tcpSocket` is read, but not
    /// run.
    #[error("invalid handler: it names neither exec, httpGet nor sleep")]
    NoAction,
}

/// What a hook does, for people.
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

/// Runs a hook to its end. `ip` is the address of the pod; `limit` bounds a
/// command in the runtime, beside the caller's own deadline; zero does not.
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
) -> Result<(), HookError> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        return exec_sync(cri, container_id, command, limit).await;
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    if let Some(get) = &hook.http_get {
        return http_get(get, container, ip).await;
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
            let output: Vec<u8> = [answer.stdout, answer.stderr].concat();
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
) -> Result<(), HookError> {
    let host = get.host.as_deref().filter(|host| !host.is_empty()).or(ip);
    let path = get.path.as_deref().unwrap_or("/");
    let failed = |url: &str, reason: String| HookError::Http {
        url: url.to_owned(),
        reason,
    };
    let (Some(host), Some(port)) = (host, port(&get.port, container)) else {
        return Err(failed(path, "no address or port to send it to".to_owned()));
    };
    let authority = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let url = format!("http://{authority}{path}");
    let failed = |error: &dyn std::error::Error| failed(&url, error.to_string());

    let mut request = Request::get(path).header("host", &authority);
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| failed(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        // Ends the connection, which runs beside this.
        drop(sender);
        Ok::<_, hyper::Error>(status)
    };
    let (status, _) = tokio::join!(exchange, connection);
    let status = status.map_err(|error| failed(&error))?;
    // As upstream: what counts is that it was answered, not how.
    tracing::debug!(%url, %status, "hook was answered");
    Ok(())
}

fn port(port: &IntOrString, container: Option<&Container>) -> Option<u16> {
    match port {
        IntOrString::Int(port) => u16::try_from(*port).ok(),
        IntOrString::String(name) => match name.parse() {
            Ok(port) => Some(port),
            Err(_) => container?
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name))
                .and_then(|port| u16::try_from(port.container_port).ok()),
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

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
        http_get(&get, Some(&container), Some("127.0.0.1"))
            .await
            .unwrap();
        assert!(server.await.unwrap().starts_with("GET /stop?now HTTP/1.1"));
    }

    #[tokio::test]
    async fn nobody_listening_is_an_error_with_the_url() {
        let get = HTTPGetAction {
            port: IntOrString::Int(1),
            ..HTTPGetAction::default()
        };
        let error = http_get(&get, None, Some("127.0.0.1")).await.unwrap_err();
        assert!(error.to_string().starts_with("GET http://127.0.0.1:1/: "));
    }
}
