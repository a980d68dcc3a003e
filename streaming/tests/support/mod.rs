//! An in-memory runtime, and raw clients for requests that this crate's client does not send.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cri_streaming::{
    Attach, Config, Connection, Exec, Exit, RequestedStreams, Runtime, RuntimeError, Server,
    Streams,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A runtime that interprets the names of its commands.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    /// The number of running methods.
    pub running: AtomicUsize,
    /// The number of methods that ended because the client was gone.
    pub abandoned: AtomicUsize,
}

impl Scripted {
    async fn command(&self, words: &[&str], mut streams: Streams) -> Result<i32, RuntimeError> {
        let gone = streams.gone.clone();
        match words {
            ["echo"] => {
                let mut stdin = streams.stdin.take().unwrap();
                let mut stdout = streams.stdout.take().unwrap();
                tokio::io::copy_buf(&mut stdin, &mut stdout).await?;
                if gone.is_cancelled() {
                    self.abandoned.fetch_add(1, Ordering::SeqCst);
                }
                Ok(0)
            }
            ["exit", code] => Ok(code.parse()?),
            ["say"] => {
                if let Some(stdout) = &mut streams.stdout {
                    stdout.write_all(b"out").await?;
                }
                if let Some(stderr) = &mut streams.stderr {
                    stderr.write_all(b"err").await?;
                }
                Ok(0)
            }
            ["burst", size] => {
                let data = pattern(size.parse()?);
                streams.stdout.unwrap().write_all(&data).await?;
                Ok(3)
            }
            ["sizes", count] => {
                let mut sizes = streams.resize.take().unwrap();
                let mut stdout = streams.stdout.take().unwrap();
                for _ in 0..count.parse::<usize>()? {
                    let size = sizes.recv().await.ok_or("no more sizes")?;
                    let line = format!("{}x{}\n", size.width, size.height);
                    stdout.write_all(line.as_bytes()).await?;
                }
                Ok(0)
            }
            ["hang"] => {
                gone.cancelled().await;
                self.abandoned.fetch_add(1, Ordering::SeqCst);
                Err("the client is gone".into())
            }
            ["panic"] => panic!("on purpose"),
            other => Err(format!("{other:?}: no such file").into()),
        }
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Runtime for Scripted {
    async fn exec(&self, exec: Exec, streams: Streams) -> Result<Exit, RuntimeError> {
        let _counted = Counted::new(&self.running);
        let words: Vec<&str> = exec.command.iter().map(String::as_str).collect();
        self.command(&words, streams).await.map(Exit::Code)
    }

    async fn attach(&self, attach: Attach, streams: Streams) -> Result<(), RuntimeError> {
        let _counted = Counted::new(&self.running);
        self.command(&[&attach.container_id], streams)
            .await
            .map(drop)
    }

    /// Echoes on port 7; sends "hello" and ends on port 13; other ports refuse connections.
    async fn port_forward(
        &self,
        _: &str,
        port: u16,
        mut connection: Connection,
    ) -> Result<(), RuntimeError> {
        let _counted = Counted::new(&self.running);
        match port {
            7 => {
                let Connection { reader, writer, .. } = &mut connection;
                tokio::io::copy_buf(reader, writer).await?;
                writer.shutdown().await?;
                Ok(())
            }
            13 => {
                connection.writer.write_all(b"hello").await?;
                Ok(connection.writer.shutdown().await?)
            }
            _ => Err("connection refused".into()),
        }
    }
}

/// A server on a port of its own. Dropping it stops the server.
pub(crate) struct Served {
    pub runtime: Arc<Scripted>,
    pub server: Arc<Server<Scripted>>,
    pub task: JoinHandle<()>,
    pub stop: CancellationToken,
    _guard: DropGuard,
}

impl Served {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new("127.0.0.1:0".parse().unwrap());
        change(&mut config);
        let runtime = Arc::new(Scripted::default());
        let server = Server::bind(config, runtime.clone()).await.unwrap();
        let server = Arc::new(server);
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.clone().serve(stop.clone()));
        Self {
            runtime,
            server,
            task,
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    pub(crate) fn exec(&self, command: &str, requested: RequestedStreams) -> String {
        let exec = Exec {
            container_id: "c".into(),
            command: command.split(' ').map(str::to_owned).collect(),
            requested,
        };
        self.server.exec(exec).unwrap()
    }

    /// Waits until all sessions and runtime methods have ended.
    pub(crate) async fn settled(&self) {
        let left = async {
            while self.server.sessions() > 0 || self.runtime.running.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, left)
            .await
            .unwrap_or_else(|_| panic!("a session is left over"));
    }
}

/// All streams of a command, without a terminal.
pub(crate) const ALL: RequestedStreams = RequestedStreams {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};

/// A terminal.
pub(crate) const TTY: RequestedStreams = RequestedStreams {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: true,
};

/// Returns bytes in which no two pages are equal.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

pub(crate) fn address(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    rest.split('/').next().unwrap()
}

pub(crate) fn path(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    &rest[address(url).len()..]
}

/// Sends a request; returns the status line with the headers, and the connection.
pub(crate) async fn request(
    url: &str,
    method: &str,
    headers: &[&str],
) -> (String, BufReader<TcpStream>) {
    let socket = TcpStream::connect(address(url)).await.unwrap();
    let mut socket = BufReader::new(socket);
    let mut text = format!("{method} {} HTTP/1.1\r\nHost: x\r\n", path(url));
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\n") {
        if socket.read_line(&mut answer).await.unwrap() == 0 {
            break;
        }
    }
    (answer, socket)
}

/// Sends a request that the server does not upgrade; returns the head and body of the answer.
pub(crate) async fn refusal(url: &str, method: &str, headers: &[&str]) -> (String, String) {
    let (head, mut socket) = request(url, method, headers).await;
    let mut body = String::new();
    socket.read_to_string(&mut body).await.unwrap();
    (head, body)
}

/// Upgrades to SPDY with the given subprotocols, each in its own header.
pub(crate) async fn upgrade_spdy(url: &str, protocols: &[&str]) -> (String, BufReader<TcpStream>) {
    let mut headers = vec![
        "Connection: Upgrade".to_owned(),
        "Upgrade: SPDY/3.1".to_owned(),
    ];
    headers.extend(
        protocols
            .iter()
            .map(|name| format!("X-Stream-Protocol-Version: {name}")),
    );
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    request(url, "POST", &headers).await
}
