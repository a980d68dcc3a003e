//! Tests of both ends against each other, and of one end against hand-made frames.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod flow;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Decoder, Deflater, Error, Frame, Headers, Incoming, Inflater, NewStream,
    state::STREAM_WINDOW, status,
};

const IDLE: Duration = Duration::from_secs(3600);
/// Long enough to conclude that nothing more happens. Time is paused.
const LONG: Duration = Duration::from_secs(600);

fn pair(buffer: usize) -> (Connection, (Connection, Incoming)) {
    let (near, far) = duplex(buffer);
    let (client, _) = Connection::client(near, IDLE, CancellationToken::new());
    (
        client,
        Connection::server(far, IDLE, CancellationToken::new()),
    )
}

fn named(name: &str) -> Headers {
    Headers::default().with("name", name)
}

/// A peer that sends hand-made frames. Like the Go library, it has no flow control by default.
struct Peer {
    io: DuplexStream,
    decoder: Decoder,
    inflater: Inflater,
    deflater: Deflater,
    buffer: BytesMut,
}

impl Peer {
    fn new(io: DuplexStream) -> Self {
        Self {
            io,
            decoder: Decoder::default(),
            inflater: Inflater::default(),
            deflater: Deflater::default(),
            buffer: BytesMut::new(),
        }
    }

    async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        frame.encode_head(&mut bytes);
        if let Frame::Data { data, .. } = &frame {
            bytes.extend_from_slice(data);
        }
        self.io.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, id: u32) {
        let block = self.deflater.deflate(&named("x"));
        self.send(Frame::SynStream {
            id,
            associated: 0,
            priority: 0,
            fin: false,
            unidirectional: false,
            block,
        })
        .await;
    }

    async fn data(&mut self, id: u32, length: usize) {
        let data = Bytes::from(vec![7; length]);
        self.send(Frame::Data {
            id,
            fin: false,
            data,
        })
        .await;
    }

    /// Reads the next frame; `None` at the end.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.decode(&mut self.buffer).unwrap() {
                if let Frame::SynReply { block, .. } = &frame {
                    self.inflater.inflate(block).unwrap();
                }
                return Some(frame);
            }
            if self.io.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }

    /// Returns the amount of data until no more arrives.
    async fn data_until_silence(&mut self) -> usize {
        let mut sum = 0;
        while let Ok(Some(frame)) = timeout(LONG, self.next()).await {
            if let Frame::Data { data, .. } = frame {
                sum += data.len();
            }
        }
        sum
    }
}

async fn next(incoming: &mut Incoming) -> NewStream {
    incoming.next().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_direction_ends_by_itself() {
    let (client, (_server, mut incoming)) = pair(1000);
    let (opened, offered) = tokio::join!(client.open(named("a")), async {
        let offered = next(&mut incoming).await;
        assert_eq!(offered.header("NAME"), Some("a"));
        offered.accept()
    });
    let (mut reader, mut writer) = opened.unwrap().split();
    let (mut far_reader, mut far_writer) = offered.split();
    writer.write_all(b"ping").await.unwrap();
    writer.shutdown().await.unwrap();
    writer.write_all(b"more").await.unwrap_err();
    let mut text = String::new();
    far_reader.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "ping");
    far_writer.write_all(&vec![b'x'; 200_000]).await.unwrap();
    drop(far_writer);
    text.clear();
    reader.read_to_string(&mut text).await.unwrap();
    assert_eq!(text.len(), 200_000);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_refused_unless_it_is_accepted() {
    let (client, (_server, mut incoming)) = pair(1000);
    let (refused, ()) = tokio::join!(client.open(named("a")), async {
        drop(next(&mut incoming).await);
    });
    assert_eq!(refused.unwrap_err(), Error::Refused);
    drop(incoming);
    assert_eq!(client.open(named("b")).await.unwrap_err(), Error::Refused);
    assert!(client.ping().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn whoever_opens_a_stream_learns_that_the_connection_ended_meanwhile() {
    let (near, far) = duplex(1000);
    let (client, _) = Connection::client(near, IDLE, CancellationToken::new());
    let mut peer = Peer::new(far);
    let (opened, ()) = tokio::join!(client.open(named("a")), async {
        while !matches!(peer.next().await, Some(Frame::SynStream { .. })) {}
        drop(peer);
    });
    assert_eq!(opened.unwrap_err(), Error::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stream_ends_behind_its_data() {
    let (near, far) = duplex(4000);
    let (server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    for (id, ended) in [(1, false), (3, true)] {
        peer.open(id).await;
        let stream = next(&mut incoming).await.accept();
        if ended {
            let (fin, data) = (true, Bytes::new());
            peer.send(Frame::Data { id, fin, data }).await;
        }
        peer.send(Frame::Ping(1)).await;
        assert!(matches!(peer.next().await, Some(Frame::SynReply { .. })));
        assert_eq!(peer.next().await, Some(Frame::Ping(1)));
        let (reader, mut writer) = stream.split();
        drop(reader);
        writer.write_all(b"last words").await.unwrap();
        drop(writer);
        let mut words = Vec::new();
        loop {
            let Some(Frame::Data { fin, data, .. }) = peer.next().await else {
                panic!("something else than data");
            };
            words.extend_from_slice(&data);
            if fin {
                break;
            }
        }
        assert_eq!(words, b"last words");
        if !ended {
            let status = status::CANCEL;
            assert_eq!(peer.next().await, Some(Frame::RstStream { id, status }));
        }
        assert_eq!(server.streams(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_streams_leave_nothing() {
    let (client, (server, mut incoming)) = pair(4000);
    let echo = tokio::spawn(async move {
        while let Some(offered) = incoming.next().await {
            let (mut reader, mut writer) = offered.accept().split();
            let mut data = [0; 4];
            reader.read_exact(&mut data).await.unwrap();
            writer.write_all(&data).await.unwrap();
        }
    });
    for number in 0..10_000_u32 {
        let (mut reader, mut writer) = client.open(named("a")).await.unwrap().split();
        writer.write_all(&number.to_be_bytes()).await.unwrap();
        assert_eq!(reader.read_u32().await.unwrap(), number);
    }
    client.ping().await.unwrap();
    server.ping().await.unwrap();
    assert_eq!(client.streams(), 0);
    assert_eq!(server.streams(), 0);
    client.close();
    echo.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_is_queued_and_tells_the_other_side() {
    let (client, (server, mut incoming)) = pair(100);
    let (opened, offered) = tokio::join!(client.open(named("a")), async {
        next(&mut incoming).await.accept()
    });
    let (mut reader, _writer) = opened.unwrap().split();
    let (_far_reader, mut far_writer) = offered.split();
    far_writer.write_all(&[1; 50_000]).await.unwrap();
    server.close();
    far_writer.write_all(b"more").await.unwrap_err();
    let mut data = Vec::new();
    reader.read_to_end(&mut data).await.unwrap_err();
    assert_eq!(data.len(), 50_000);
    client.closed().await;
    server.closed().await;
    assert_eq!(client.open(named("b")).await.unwrap_err(), Error::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_cut_off() {
    let (near, far) = duplex(1000);
    let idle = Duration::from_secs(60);
    let (server, mut incoming) = Connection::server(far, idle, CancellationToken::new());
    let mut peer = Peer::new(near);
    tokio::time::sleep(idle / 2).await;
    peer.send(Frame::Ping(1)).await;
    assert_eq!(peer.next().await, Some(Frame::Ping(1)));
    let since = tokio::time::Instant::now();
    server.closed().await;
    assert_eq!(since.elapsed().as_secs(), 60);
    assert!(incoming.next().await.is_none());
    assert_eq!(peer.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_allowed_ends_the_connection() {
    for ids in [[2, 3], [1, 1], [5, 3]] {
        let (near, far) = duplex(1000);
        let (server, incoming) = Connection::server(far, IDLE, CancellationToken::new());
        let mut peer = Peer::new(near);
        for id in ids {
            peer.open(id).await;
        }
        timeout(LONG, server.closed()).await.unwrap();
        drop(incoming);
    }
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x80, 3, 0, 1, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9],
    ] {
        let (mut near, far) = duplex(1000);
        let (server, _incoming) = Connection::server(far, IDLE, CancellationToken::new());
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        timeout(LONG, server.closed()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_limited() {
    let (near, far) = duplex(100_000);
    let (_server, _incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    for number in 0..2049_u32 {
        peer.open(2 * number + 1).await;
    }
    assert_eq!(
        peer.next().await,
        Some(Frame::RstStream {
            id: 4097,
            status: status::REFUSED_STREAM
        })
    );
}
