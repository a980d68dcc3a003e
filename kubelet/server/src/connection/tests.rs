use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::routing::get;
use futures::stream;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use super::*;

/// A client that requests `/log`. It accepts a few bytes per write, and only every other write.
#[derive(Default)]
struct SlowClient {
    has_asked: bool,
    is_busy: bool,
    sent: Arc<Mutex<Sent>>,
}

/// The sent bytes, grouped by flush.
#[derive(Default)]
struct Sent {
    flushed: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl AsyncRead for SlowClient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.has_asked {
            return Poll::Pending;
        }
        self.has_asked = true;
        buffer.put_slice(b"GET /log HTTP/1.1\r\nHost: node-1\r\n\r\n");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlowClient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_busy = !self.is_busy;
        if self.is_busy {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = bytes.len().min(7);
        self.sent.lock().open.extend(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = self.sent.lock();
        let open = std::mem::take(&mut sent.open);
        if !open.is_empty() {
            sent.flushed.push(open);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The bytes that the client receives from `/log`, grouped by flush.
async fn answered(body: fn() -> Body) -> Vec<String> {
    let client = SlowClient::default();
    let sent = Arc::clone(&client.sent);
    let routes = Router::new().route("/log", get(move || async move { Response::new(body()) }));
    let places = ConnectionLimiter::new("test", OPEN_ROOM);
    let place = Arc::new(places.admit(None));
    let service = Service::open(routes, Limits::OPEN, places);
    let serving = serve_stream(client, service, &place, CancellationToken::new());
    let answered = async {
        loop {
            let flushed = sent.lock().flushed.clone();
            if flushed
                .last()
                .is_some_and(|last| last.ends_with(b"\r\n\r\n"))
                && flushed.len() > 1
                || flushed.concat().ends_with(b"whole")
            {
                return flushed;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    let flushed = tokio::select! {
        flushed = answered => flushed,
        () = serving => sent.lock().flushed.clone(),
    };
    let texts = flushed.into_iter().map(String::from_utf8);
    texts.collect::<Result<_, _>>().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_streams_end_comes_apart_from_its_last_bytes() {
    let flushed = answered(|| {
        let parts = ["a line\n", "the last line\n"].map(Ok::<_, io::Error>);
        Body::from_stream(stream::iter(parts))
    })
    .await;
    let head = flushed[0].to_lowercase();
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
    let before = flushed[..flushed.len() - 1].concat();
    assert!(before.ends_with("the last line\n\r\n"), "{flushed:?}");
    assert_eq!(flushed.last().unwrap(), "0\r\n\r\n", "{flushed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_there_whole_tells_its_length() {
    let flushed = answered(|| Body::from("whole")).await;
    let answer = flushed.concat();
    assert!(answer.to_lowercase().contains("content-length: 5\r\n"));
    assert!(answer.ends_with("\r\n\r\nwhole"));
}

#[tokio::test(start_paused = true)]
async fn a_request_at_the_end_of_a_connection_is_answered() {
    let limits = Limits {
        lifetime: Duration::from_secs(20),
        ..Limits::OPEN
    };
    let slow = get(|| async {
        time::sleep(Duration::from_secs(15)).await;
        "late"
    });
    let places = ConnectionLimiter::new("test", OPEN_ROOM);
    let routes = Router::new().route("/slow", slow);
    let service = Service::open(routes, limits, Arc::clone(&places));
    let (mut client, server) = tokio::io::duplex(4096);
    let served = tokio::spawn(async move {
        let place = Arc::new(places.admit(None));
        serve_stream(server, service, &place, CancellationToken::new()).await;
    });
    time::sleep(Duration::from_secs(19)).await;
    let request = b"GET /slow HTTP/1.1\r\nhost: node\r\n\r\n";
    client.write_all(request).await.unwrap();
    // Until the connection ends.
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("late"), "{text}");
    served.await.unwrap();
}
