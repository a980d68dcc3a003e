//! A stand-in for a kubelet: TLS with required client certificates, logs that contain the request,
//! and streams of a real streaming server.

use std::{
    convert::Infallible,
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use cri_streaming::{
    Attach, Config, Connection, Exec, Exit, Proxy, ProxyTimeouts, RequestedStreams, Runtime,
    RuntimeError, Server, Streams,
};
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use test_api_server::ApiServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_buf},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A kubelet's API; it stops when dropped.
pub(crate) struct Kubelet {
    pub port: u16,
    task: tokio::task::JoinHandle<()>,
    _stop: tokio_util::sync::DropGuard,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Inner {
    asked: AtomicU32,
    streaming: Arc<Server<Echo>>,
    proxy: Proxy,
}

impl Kubelet {
    /// Serves clients with a certificate of `server`'s authority.
    pub(crate) async fn start(server: &ApiServer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let config = Config::new((Ipv4Addr::LOCALHOST, 0).into());
        let streaming = Arc::new(Server::bind(config, Arc::new(Echo)).await.unwrap());
        tokio::spawn(Arc::clone(&streaming).serve(stop.clone()));
        let tls = tls(&server.authority_pem());
        let timeouts = ProxyTimeouts::default();
        let inner = Arc::new(Inner {
            asked: AtomicU32::new(0),
            streaming,
            proxy: Proxy::new(timeouts, TaskTracker::new(), stop.clone()),
        });
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (inner, tls) = (Arc::clone(&inner), tls.clone());
                tokio::spawn(async move { inner.connection(stream, &tls).await });
            }
        });
        Self {
            port,
            task,
            _stop: stop.drop_guard(),
        }
    }
}

fn tls(client_authority: &str) -> TlsAcceptor {
    let own = rcgen::generate_simple_self_signed(["kubelet".to_owned()]).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(client_authority.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

impl Inner {
    async fn connection(self: Arc<Self>, stream: TcpStream, tls: &TlsAcceptor) {
        let Ok(stream) = tls.accept(stream).await else {
            return;
        };
        let service = service_fn(move |request| {
            let inner = Arc::clone(&self);
            async move { Ok::<_, Infallible>(inner.answer(request).await) }
        });
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
    }

    /// Metrics in which CPU usage grows by half a second per second.
    fn measures(&self) -> Answer {
        let second = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let (cpu, at) = (f64::from(second) / 2.0, second * 1000);
        let labels = r#"{container="c",namespace="default",pod="web"}"#;
        text(
            200,
            &format!(
                "node_cpu_usage_seconds_total {cpu} {at}\n\
                 node_memory_working_set_bytes 1073741824 {at}\n\
                 container_cpu_usage_seconds_total{labels} {cpu} {at}\n\
                 container_memory_working_set_bytes{labels} 1048576 {at}\n"
            ),
        )
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let uri = request.uri().clone();
        let parts: Vec<&str> = uri.path().split('/').skip(1).collect();
        let query: Vec<(&str, String)> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key, value.replace("%20", " ").replace("%2F", "/")))
            .collect();
        let has = |key: &str| query.iter().any(|(had, _)| *had == key);
        let requested = RequestedStreams {
            stdin: has("input"),
            stdout: has("output"),
            stderr: has("error") && !has("tty"),
            tty: has("tty"),
        };
        let id = || parts[1..].join("/");
        let url = match parts[0] {
            "metrics" => return self.measures(),
            "containerLogs" if has("follow") => return followed(),
            "containerLogs" if has("previous") => {
                return text(400, "previous terminated container \"c\" not found");
            }
            "containerLogs" | "logs" | "configz" => return text(200, &format!("{uri}\n")),
            "exec" => {
                let command = query.iter().filter(|(key, _)| *key == "command");
                self.streaming.exec(Exec {
                    container_id: id(),
                    command: command.map(|(_, word)| word.clone()).collect(),
                    requested,
                })
            }
            "attach" => self.streaming.attach(Attach {
                container_id: id(),
                requested,
            }),
            "portForward" => self.streaming.port_forward(id(), Vec::new()),
            _ => return text(404, "404 page not found\n"),
        };
        let url = url.unwrap().parse().unwrap();
        let answer = self.proxy.forward(request, &url).await;
        answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
    }
}

fn text(status: u16, text: &str) -> Answer {
    let body = Full::new(Bytes::from(text.to_owned()));
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

/// A followed log: two lines, then no end.
fn followed() -> Answer {
    let lines = stream::iter(["one\n", "two\n"]).map(|line| Ok(Frame::data(Bytes::from(line))));
    Response::new(StreamBody::new(lines.chain(stream::pending())).boxed_unsync())
}

/// A runtime whose commands echo their input.
struct Echo;

impl Runtime for Echo {
    async fn exec(&self, exec: Exec, streams: Streams) -> Result<Exit, RuntimeError> {
        let words: Vec<&str> = exec.command.iter().map(String::as_str).collect();
        let (mut stdin, mut stdout, mut stderr) = (streams.stdin, streams.stdout, streams.stderr);
        match words.as_slice() {
            ["cat"] => {
                if let (Some(stdin), Some(stdout)) = (&mut stdin, &mut stdout) {
                    copy_buf(stdin, stdout).await?;
                }
            }
            ["echo", rest @ ..] => {
                if let Some(stdout) = &mut stdout {
                    let line = format!("{}\n", rest.join(" "));
                    stdout.write_all(line.as_bytes()).await?;
                }
            }
            _ => {
                if let Some(stderr) = &mut stderr {
                    stderr.write_all(b"no such command\n").await?;
                }
                return Ok(Exit::Code(3));
            }
        }
        if let Some(stdout) = &mut stdout {
            stdout.shutdown().await?;
        }
        Ok(Exit::Code(0))
    }

    async fn attach(&self, attach: Attach, streams: Streams) -> Result<(), RuntimeError> {
        if let Some(mut stdout) = streams.stdout {
            let line = format!("attached to {}\n", attach.container_id);
            stdout.write_all(line.as_bytes()).await?;
            if let Some(mut stdin) = streams.stdin {
                copy_buf(&mut stdin, &mut stdout).await?;
            }
            stdout.shutdown().await?;
        }
        Ok(())
    }

    async fn port_forward(
        &self,
        pod: &str,
        port: u16,
        mut connection: Connection,
    ) -> Result<(), RuntimeError> {
        let mut said = [0; 5];
        connection.reader.read_exact(&mut said).await?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let answer = format!("{said} to port {port} of {pod}");
        connection.writer.write_all(answer.as_bytes()).await?;
        connection.writer.shutdown().await?;
        Ok(())
    }
}
