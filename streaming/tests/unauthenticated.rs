//! Clients that connect without presenting a token.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use cri_streaming::client::{Client, Command, Transport};
use support::{ALL, Served, address};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

/// The maximum time that a client with a token waits, less than the server gives others.
const SOON: Duration = Duration::from_secs(9);
/// The limit on connections in these tests.
const ROOM: usize = 32;

async fn served() -> Served {
    Served::with(|config| config.connections = ROOM).await
}

/// Connects from an address of this machine, and sends nothing.
async fn connect(served: &Served, from: [u8; 4]) -> TcpStream {
    let to: SocketAddr = address(served.server.base_url()).parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Checks whether the server has closed a connection.
fn is_closed(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Waits until at most `most` of the connections are left.
async fn until_left(streams: &[TcpStream], most: usize) {
    let left = || streams.iter().filter(|stream| !is_closed(stream)).count();
    let waited = timeout(SOON, async {
        while left() > most {
            sleep(Duration::from_millis(5)).await;
        }
    });
    if waited.await.is_err() {
        panic!("{} of {} are left, not {most}", left(), streams.len());
    }
}

async fn exec(served: &Served, command: &str) -> Command {
    let url = served.exec(command, ALL);
    let client = Client::default();
    let command = client.command(&url, Transport::WebSocket, ALL);
    let started = timeout(SOON, command).await;
    started
        .unwrap_or_else(|_| panic!("no place for who has a token"))
        .unwrap()
}

async fn echoes(command: &mut Command) {
    let (stdin, stdout) = (&mut command.stdin, &mut command.stdout);
    let stdin = stdin.as_mut().unwrap();
    stdin.write_all(b"again").await.unwrap();
    stdin.flush().await.unwrap();
    let mut back = [0; 5];
    let read = stdout.as_mut().unwrap().read_exact(&mut back);
    timeout(SOON, read).await.unwrap().unwrap();
    assert_eq!(&back, b"again");
}

#[tokio::test]
async fn strangers_leave_room_for_those_with_a_token() {
    let served = served().await;
    let mut session = exec(&served, "echo").await;
    let mut silent = Vec::new();
    for n in 0..2 * ROOM {
        let last = u8::try_from(n + 1).unwrap();
        silent.push(connect(&served, [127, 0, 1, last]).await);
    }
    // Each connection has its own address, so no address exceeds its share.
    let command = exec(&served, "exit 3").await;
    assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(3));
    echoes(&mut session).await;
    until_left(&silent, ROOM / 4).await;
    let [connections, strangers, of_address, _] =
        served.server.bounds().map(|bound| bound.reached());
    assert!(strangers > 0 && connections == 0 && of_address == 0);
}

#[tokio::test]
async fn an_address_has_its_part_of_the_strangers() {
    let served = served().await;
    let other = connect(&served, [127, 0, 0, 3]).await;
    let mut silent = Vec::new();
    for _ in 0..2 * ROOM {
        silent.push(connect(&served, [127, 0, 0, 2]).await);
    }
    let mut first = silent.remove(0);
    let read = timeout(SOON, first.read(&mut [0])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "the first makes room");
    let command = exec(&served, "exit 3").await;
    assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(3));
    until_left(&silent, ROOM / 8).await;
    assert!(!is_closed(&other), "who comes from elsewhere stays");
    let [.., of_address, _] = served.server.bounds();
    assert!(of_address.reached() > 0);
}
