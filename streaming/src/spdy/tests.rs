//! Both ends against each other, and one end against bytes made by hand.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Decoder, Deflater, Error, Frame, Headers, Incoming, Inflater, NewStream,
    state::STREAM_WINDOW,
};

const IDLE: Duration = Duration::from_secs(3600);
/// Long enough to say that something does not happen; time is paused.
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

/// A peer made by hand, such as the Go library, which knows no windows.
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

    /// The next frame; `None` at the end.
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

    /// How much data comes before nothing more does.
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
            let status = super::status::CANCEL;
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
async fn a_peer_without_windows_gets_as_much_as_it_reads() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.open(1).await;
    let (_reader, mut writer) = next(&mut incoming).await.accept().split();
    let size = 3_000_000;
    let writing = tokio::spawn(async move {
        writer.write_all(&vec![1; size]).await.unwrap();
        writer
    });
    assert_eq!(peer.data_until_silence().await, size);
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_windows_is_stopped_when_nobody_reads() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.open(1).await;
    let (mut reader, _writer) = next(&mut incoming).await.accept().split();
    let mut sent = 0;
    while timeout(LONG, peer.data(1, 10_000)).await.is_ok() {
        sent += 10_000;
        // What all streams together may have is more than twice as much.
        assert!(sent < 3 * STREAM_WINDOW as usize, "it takes any amount");
    }
    assert!(sent > STREAM_WINDOW as usize);
    // Reading on lets the peer go on, without a byte lost.
    let mut data = vec![0; sent];
    reader.read_exact(&mut data).await.unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_many_streams_is_stopped_by_what_all_have() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    let (mut unread, mut sent) = (Vec::new(), 0);
    for number in 0..100 {
        let id = 2 * number + 1;
        peer.open(id).await;
        unread.push(next(&mut incoming).await.accept());
        // Less than one stream may have.
        if timeout(LONG, peer.data(id, 500_000)).await.is_err() {
            break;
        }
        sent += 500_000;
    }
    assert!(sent < 6 << 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn what_was_unread_of_streams_that_are_gone_does_not_count() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    for number in 0..100 {
        let id = 2 * number + 1;
        peer.open(id).await;
        let stream = next(&mut incoming).await.accept();
        timeout(LONG, peer.data(id, 100_000)).await.unwrap();
        peer.send(Frame::Ping(1)).await;
        let answered = async { while peer.next().await.unwrap() != Frame::Ping(1) {} };
        timeout(LONG, answered).await.unwrap();
        drop(stream);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_byte_by_byte_is_stopped_by_what_that_costs() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.open(1).await;
    let _unread = next(&mut incoming).await.accept();
    let mut sent = 0;
    while timeout(LONG, peer.data(1, 1)).await.is_ok() {
        sent += 1;
        assert!(sent < STREAM_WINDOW / 8, "{sent} pieces are kept");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_of_more_than_two_gibibytes_ends_what_it_is_of() {
    const MOST: u32 = 0x7fff_ffff;
    const FIRST: u32 = 64 * 1024;
    let update = |id, delta| Frame::WindowUpdate { id, delta };
    let settings = |window| Frame::Settings {
        initial_window: Some(window),
    };
    // Of the connection: what went too far is the last frame.
    for frames in [
        [update(0, MOST - FIRST), update(0, 1)],
        [update(1, MOST - FIRST), settings(FIRST + 1)],
    ] {
        let (near, far) = duplex(4000);
        let (server, _incoming) = Connection::server(far, IDLE, CancellationToken::new());
        let mut peer = Peer::new(near);
        peer.open(1).await;
        let [allowed, too_far] = frames;
        peer.send(allowed).await;
        peer.send(Frame::Ping(1)).await;
        while peer.next().await.unwrap() != Frame::Ping(1) {}
        peer.send(too_far).await;
        timeout(LONG, server.closed()).await.unwrap();
    }

    // Of a stream, which costs that stream alone.
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    for id in [1, 3] {
        peer.open(id).await;
    }
    let _one = next(&mut incoming).await.accept();
    let other = next(&mut incoming).await.accept();
    peer.send(update(3, MOST - FIRST)).await;
    peer.send(update(1, MOST - FIRST + 1)).await;
    let reset = loop {
        let frame = timeout(LONG, peer.next()).await;
        if let Frame::RstStream { id, status } = frame.unwrap().unwrap() {
            break (id, status);
        }
    };
    assert_eq!(reset, (1, super::status::FLOW_CONTROL_ERROR));
    let (_reader, mut writer) = other.split();
    writer.write_all(b"still here").await.unwrap();
    assert_eq!(peer.data_until_silence().await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_leaves_is_noticed_even_when_nobody_reads() {
    let (near, far) = duplex(4000);
    let (server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.open(1).await;
    let _unread = next(&mut incoming).await.accept();
    while timeout(LONG, peer.data(1, 10_000)).await.is_ok() {}
    drop(peer);
    timeout(LONG, server.closed()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unread_data_of_a_dropped_reader_stops_nobody() {
    let (near, far) = duplex(4000);
    let (server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.open(1).await;
    let (reader, _writer) = next(&mut incoming).await.accept().split();
    peer.data(1, 100_000).await;
    peer.send(Frame::Ping(1)).await;
    while peer.next().await.unwrap() != Frame::Ping(1) {}
    assert_eq!(server.kept(), 100_000);
    drop(reader);
    assert_eq!(server.kept(), 0);
    for _ in 0..100 {
        timeout(LONG, peer.data(1, 100_000)).await.unwrap();
    }
    peer.send(Frame::Ping(1)).await;
    while peer.next().await.unwrap() != Frame::Ping(1) {}
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_windows_has_them_obeyed_and_learns_ours() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.send(Frame::Settings {
        initial_window: Some(1000),
    })
    .await;
    let settings = Frame::Settings {
        initial_window: Some(STREAM_WINDOW),
    };
    assert_eq!(peer.next().await, Some(settings));
    assert!(matches!(
        peer.next().await,
        Some(Frame::WindowUpdate { id: 0, .. })
    ));
    peer.open(1).await;
    let (mut reader, mut writer) = next(&mut incoming).await.accept().split();
    let writing = tokio::spawn(async move {
        writer.write_all(&vec![1; 200_000]).await.unwrap();
    });
    assert_eq!(peer.data_until_silence().await, 1000);
    peer.send(Frame::WindowUpdate { id: 1, delta: 500 }).await;
    assert_eq!(peer.data_until_silence().await, 500);
    peer.send(Frame::Settings {
        initial_window: Some(3000),
    })
    .await;
    assert_eq!(peer.data_until_silence().await, 2000);
    // The stream's window is larger now than what is left of the connection's 64 KiB.
    peer.send(Frame::WindowUpdate {
        id: 1,
        delta: 1_000_000,
    })
    .await;
    assert_eq!(peer.data_until_silence().await, 64 * 1024 - 3500);
    peer.send(Frame::WindowUpdate {
        id: 0,
        delta: 1_000_000,
    })
    .await;
    assert_eq!(peer.data_until_silence().await, 200_000 - 64 * 1024);
    writing.await.unwrap();

    // What is read is given back, what is not read is not.
    let half = STREAM_WINDOW / 2;
    for _ in 0..4 {
        peer.data(1, STREAM_WINDOW as usize / 8).await;
    }
    assert!(timeout(LONG, peer.next()).await.is_err());
    let mut data = vec![0; half as usize];
    reader.read_exact(&mut data).await.unwrap();
    assert_eq!(
        peer.next().await,
        Some(Frame::WindowUpdate { id: 1, delta: half })
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_s_window_that_is_never_given_back_does_not_count() {
    let (near, far) = duplex(4000);
    let (_server, mut incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    peer.send(Frame::Settings {
        initial_window: Some(150_000),
    })
    .await;
    peer.open(1).await;
    let (_reader, mut writer) = next(&mut incoming).await.accept().split();
    let writing = tokio::spawn(async move {
        writer.write_all(&vec![1; 200_000]).await.unwrap();
    });
    let (mut sum, mut ping) = (0, None);
    while ping.is_none() {
        match peer.next().await.unwrap() {
            Frame::Data { data, .. } => sum += data.len(),
            Frame::Ping(id) => ping = Some(id),
            _ => {}
        }
    }
    assert_eq!(sum, 64 * 1024);
    peer.send(Frame::Ping(ping.unwrap())).await;
    assert_eq!(peer.data_until_silence().await, 150_000 - 64 * 1024);
    peer.send(Frame::WindowUpdate {
        id: 1,
        delta: 50_000,
    })
    .await;
    assert_eq!(peer.data_until_silence().await, 50_000);
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_not_read_from_for_ever() {
    let (near, far) = duplex(1000);
    let (_server, _incoming) = Connection::server(far, IDLE, CancellationToken::new());
    let mut peer = Peer::new(near);
    let mut pings = 0;
    while timeout(LONG, peer.send(Frame::Ping(1))).await.is_ok() {
        pings += 1;
        assert!(pings < 100_000, "answers pile up");
    }
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
            status: super::status::REFUSED_STREAM
        })
    );
}
