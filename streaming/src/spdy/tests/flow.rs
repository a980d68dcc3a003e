//! Flow control, and the limits on peers that do not implement it or ignore our windows.

use super::*;

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
        // The limit of all streams together is more than twice this.
        assert!(sent < 3 * STREAM_WINDOW as usize, "it takes any amount");
    }
    assert!(sent > STREAM_WINDOW as usize);
    // Once the data is read, the peer can continue; no byte is lost.
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
        // Less than the limit of one stream.
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
    // The connection's window: the last frame exceeds it.
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

    // A stream's window: exceeding it ends only that stream.
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
    assert_eq!(reset, (1, status::FLOW_CONTROL_ERROR));
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
    // The stream's window is now larger than the rest of the connection's 64 KiB.
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

    // Only data that was read is returned as window.
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
