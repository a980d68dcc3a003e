//! Connections to a sandbox's loopback interface. A socket created in the sandbox's network
//! namespace remains in it, whichever thread uses it.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use cri_streaming::Connection;
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpSocket, TcpStream},
    sync::oneshot,
};

use crate::{Error, process::Processes};

/// The connect timeout.
const PATIENCE: Duration = Duration::from_secs(10);
/// The buffer size towards the client.
const BUFFER: usize = 128 * 1024;

/// Nothing accepted the connection.
#[derive(Debug)]
struct ConnectError {
    port: u16,
    pid: i64,
    v4: io::Error,
    v6: io::Error,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, pid, v4, v6 } = self;
        write!(
            f,
            "failed to connect to localhost:{port} inside namespace \"/proc/{pid}/ns/net\", \
             IPv4: {v4} IPv6: {v6}"
        )
    }
}

/// Connects to a port on the loopback interface of the sandbox's process `pid`.
///
/// # Errors
/// `FailedPrecondition` if nothing listens, or the sandbox has no such process on this machine;
/// `File` if the namespace cannot be entered.
pub async fn connect(
    processes: &Arc<Processes>,
    sandbox_id: &str,
    pid: i64,
    port: u16,
) -> Result<TcpStream, Error> {
    let failed = |action| {
        move |source| Error::File {
            action,
            path: format!("/proc/{pid}/ns/net").into(),
            source,
        }
    };
    let process = processes.find(sandbox_id, pid).await;
    let process = process.map_err(|error| Error::FailedPrecondition(error.to_string()))?;
    let namespace = process
        .network_namespace()
        .map_err(failed("open the sandbox's network namespace"))?;
    let (answer, answered) = oneshot::channel();
    // In its own thread, as the namespace is a property of the thread. The thread only creates two
    // sockets and exits.
    std::thread::Builder::new()
        .name("port-forward".into())
        .spawn(move || drop(answer.send(sockets_inside(&namespace))))
        .map_err(failed("start a thread for"))?;
    let (v4, v6) = answered
        .await
        .map_err(|_| Error::Panicked("PortForward"))?
        .map_err(failed("enter"))?;
    let v4 = match reach(v4, Ipv4Addr::LOCALHOST.into(), port).await {
        Ok(connected) => return Ok(connected),
        Err(error) => error,
    };
    let v6 = match reach(v6, Ipv6Addr::LOCALHOST.into(), port).await {
        Ok(connected) => return Ok(connected),
        Err(error) => error,
    };
    let refused = ConnectError { port, pid, v4, v6 };
    Err(Error::FailedPrecondition(refused.to_string()))
}

async fn reach(socket: io::Result<OwnedFd>, ip: IpAddr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(StdStream::from(socket?));
    let connecting = socket.connect(SocketAddr::new(ip, port));
    let connected = tokio::time::timeout(PATIENCE, connecting).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// An IPv4 and an IPv6 socket; the kernel may not support one of them.
type Sockets = (io::Result<OwnedFd>, io::Result<OwnedFd>);

fn sockets_inside(namespace: &OwnedFd) -> io::Result<Sockets> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = |family| Ok(socket_with(family, SocketType::STREAM, flags, None)?);
    Ok((make(AddressFamily::INET), make(AddressFamily::INET6)))
}

/// Copies data in both directions until both have ended, or the client disconnects.
///
/// # Errors
/// The connection to the sandbox failed.
pub async fn carry(socket: TcpStream, connection: Connection) -> io::Result<()> {
    let Connection {
        mut reader,
        mut writer,
        gone,
    } = connection;
    let _ = socket.set_nodelay(true);
    let (from_pod, mut to_pod) = socket.into_split();
    let mut from_pod = BufReader::with_capacity(BUFFER, from_pod);
    // Owns the reader, so what the client sends after the pod stops reading is dropped.
    let inward = async move {
        loop {
            let bytes = reader.fill_buf().await.map_err(CarryError::Client)?;
            // A pod that no longer reads may still write.
            let Ok(length) = to_pod.write(bytes).await else {
                return Ok(to_pod);
            };
            if length == 0 {
                let _ = to_pod.shutdown().await;
                return Ok(to_pod);
            }
            reader.consume(length);
        }
    };
    let outward = async {
        loop {
            let bytes = from_pod.fill_buf().await.map_err(CarryError::Pod)?;
            if bytes.is_empty() {
                return writer.shutdown().await.map_err(CarryError::Client);
            }
            let length = writer.write(bytes).await.map_err(CarryError::Client)?;
            from_pod.consume(length);
        }
    };
    let carried = tokio::select! {
        carried = async { tokio::try_join!(inward, outward) } => carried,
        () = gone.cancelled() => return Ok(()),
    };
    match carried {
        Ok(_) => Ok(()),
        Err(CarryError::Client(error)) => {
            tracing::debug!(%error, "the client of a forwarded connection disconnected");
            Ok(())
        }
        Err(CarryError::Pod(error)) => Err(error),
    }
}

/// The side of a forwarded connection that failed.
enum CarryError {
    Client(io::Error),
    Pod(io::Error),
}
