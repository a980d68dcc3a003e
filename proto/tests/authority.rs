//! The `:authority` headers that gRPC clients send over a unix socket, in their own encodings, to a
//! server on [`Incoming`].

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cri_proto::server::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};
use tonic::{service::Routes, transport::Server};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const POST: &[u8] = b"\x83";
const HTTP: &[u8] = b"\x86";
const PATH: &[u8] = b"\x04\x05/no/v";

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns the type of the frame that answers a stream.
async fn answer(connection: &mut UnixStream, stream: u8) -> u8 {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        connection.read_exact(&mut payload).await.unwrap();
        if head[8] == stream {
            return head[3];
        }
    }
}

#[tokio::test]
async fn requests_are_answered_whatever_their_authority() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("grpc.sock");
    let incoming = Incoming::from(UnixListener::bind(&socket).unwrap());
    let server = Server::builder().add_routes(Routes::default());
    tokio::spawn(server.serve_with_incoming(incoming));

    for (client, fields) in [
        ("Rust", [POST, HTTP, b"\x41\x09localhost", PATH]),
        (
            "C core",
            [PATH, b"\x40\x0a:authority\x0erun%2Fcri.sock", POST, HTTP],
        ),
        ("Java", [b"\x41\x0d/run/cri.sock", PATH, POST, HTTP]),
        (
            "Go",
            [
                POST,
                HTTP,
                PATH,
                b"\x41\x8a\x62\xcb\x6a\x60\x96\x19\x74\x1c\x9d\x7f",
            ],
        ),
        (
            "newer Go",
            [
                POST,
                HTTP,
                PATH,
                b"\x41\x8d\x54\x58\x6c\xb6\xa5\x45\x84\x96\x19\x74\x1c\x9d\x7f",
            ],
        ),
        ("Go without a name", [POST, HTTP, PATH, b"\x81"]),
    ] {
        let mut connection = UnixStream::connect(&socket).await.unwrap();
        connection.write_all(PREFACE).await.unwrap();
        let settings = frame(SETTINGS, 0, 0, &[]);
        connection.write_all(&settings).await.unwrap();
        let first = fields.concat();
        // The second request takes the authority from the dynamic table, if the first has added it.
        let kept = first.contains(&0x40) || first.contains(&0x41);
        let second = if kept {
            [POST, HTTP, PATH, b"\xbe"].concat()
        } else {
            first.clone()
        };
        for (stream, block) in [(1, first), (3, second)] {
            let flags = END_STREAM | END_HEADERS;
            let request = frame(HEADERS, flags, stream, &block);
            connection.write_all(&request).await.unwrap();
            let answer = answer(&mut connection, stream).await;
            assert_ne!(answer, RESET, "{client}, stream {stream}");
            assert_eq!(answer, HEADERS, "{client}, stream {stream}");
        }
    }
}
