//! The protocols of older and third-party clients, and invalid input. The tests use raw connections
//! and tungstenite's client instead of this crate's client.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{sync::atomic::Ordering, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cri_streaming::spdy::{Connection, Headers, Stream};
use futures::{SinkExt as _, StreamExt as _};
use support::{ALL, Served, TTY, address, refusal, request, upgrade_spdy};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _, http::HeaderValue},
};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(3600);

fn spdy(io: BufReader<TcpStream>) -> Connection {
    Connection::client(io, IDLE, CancellationToken::new()).0
}

async fn open(connection: &Connection, kind: &str) -> Stream {
    let headers = Headers::default().with("streamType", kind);
    connection.open(headers).await.unwrap()
}

async fn text(stream: Stream) -> String {
    let mut bytes = Vec::new();
    let (mut reader, _writer) = stream.split();
    let _ = reader.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn every_spdy_version_tells_the_end_in_its_way() {
    let served = Served::new().await;
    let json = "{\"status\":\"Failure\",\"message\":\"command terminated with non-zero exit code: exit status 42\",\"reason\":\"NonZeroExitCode\",\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\"message\":\"42\"}]}}";
    let plain = "command terminated with non-zero exit code: exit status 42";
    for (version, failure, success) in [
        ("v4.channel.k8s.io", json, "{\"status\":\"Success\"}"),
        ("v3.channel.k8s.io", plain, ""),
        ("v2.channel.k8s.io", plain, ""),
        // Version 1 resets the error stream, as upstream did.
        ("channel.k8s.io", "", ""),
    ] {
        for (command, expected) in [("exit 42", failure), ("exit 0", success)] {
            let url = served.exec(command, ALL);
            let (head, io) = upgrade_spdy(&url, &["v99.channel.k8s.io", version]).await;
            assert!(head.starts_with("HTTP/1.1 101"), "{head}");
            assert!(
                head.to_lowercase()
                    .contains(&format!("x-stream-protocol-version: {version}\r\n"))
            );
            let connection = spdy(io);
            let error = open(&connection, "error").await;
            for kind in ["stdin", "stdout", "stderr"] {
                drop(open(&connection, kind).await);
            }
            assert_eq!(text(error).await, expected, "{version} {command}");
        }
    }
    served.settled().await;
}

#[tokio::test]
async fn only_versions_with_resizing_wait_for_its_stream() {
    let served = Served::new().await;
    for (version, resizes) in [("v2.channel.k8s.io", false), ("v3.channel.k8s.io", true)] {
        let url = served.exec("say", TTY);
        let (_, io) = upgrade_spdy(&url, &[version]).await;
        let connection = spdy(io);
        let _error = open(&connection, "error").await;
        let _stdin = open(&connection, "stdin").await;
        let stdout = open(&connection, "stdout").await;
        let _resize = match resizes {
            true => Some(open(&connection, "resize").await),
            false => None,
        };
        assert_eq!(text(stdout).await, "out", "{version}");
    }
    served.settled().await;
}

#[tokio::test]
async fn what_is_no_upgrade_is_refused_with_a_reason() {
    let served = Served::new().await;
    let upgrade = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
    let url = served.exec("echo", ALL);
    let (head, body) = refusal(&url, "POST", &upgrade).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    assert!(body.contains("X-Stream-Protocol-Version"), "{body}");

    let url = served.exec("echo", ALL);
    let mut headers = upgrade.to_vec();
    headers.push("X-Stream-Protocol-Version: v9.channel.k8s.io");
    let (head, body) = refusal(&url, "POST", &headers).await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert!(
        head.to_lowercase()
            .contains("x-accepted-stream-protocol-versions: v4.channel.k8s.io")
    );
    assert!(body.contains("unable to negotiate protocol"), "{body}");

    let url = served.exec("echo", ALL);
    let (head, body) = refusal(
        &url,
        "GET",
        &["X-Stream-Protocol-Version: v4.channel.k8s.io"],
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    assert!(body.contains("missing upgrade headers"), "{body}");

    let (head, _) = refusal(&served.exec("echo", ALL), "DELETE", &[]).await;
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
}

#[tokio::test]
async fn tokens_are_not_found_twice_nor_under_another_verb() {
    let served = Served::new().await;
    let base = served.server.base_url().to_owned();
    let url = served.exec("echo", ALL);
    let used = url.clone();
    upgrade_spdy(&used, &["v4.channel.k8s.io"]).await;
    let other_verb = served.exec("echo", ALL).replace("/exec/", "/attach/");
    for url in [
        used,
        other_verb,
        format!("{base}/exec/AAAAAAAA"),
        format!("{base}/exec/"),
        format!("{base}/"),
        format!("{base}/nothing/AAAAAAAA"),
    ] {
        let (head, body) = refusal(&url, "POST", &["Upgrade: SPDY/3.1"]).await;
        assert!(head.starts_with("HTTP/1.1 404"), "{url}: {head}");
        assert_eq!(body, "404 page not found\n");
    }
    for number in 0..1000 {
        served
            .server
            .port_forward(number.to_string(), vec![])
            .unwrap();
    }
    let refused = served
        .server
        .port_forward("late".into(), vec![])
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "maximum number of in-flight requests exceeded"
    );
}

#[tokio::test]
async fn a_base_path_is_in_front_of_every_path() {
    let served = Served::with(|config| config.base_path = "/cri/".into()).await;
    let url = served.exec("exit 0", ALL);
    assert!(url.contains("/cri/exec/"), "{url}");
    let (head, _) = refusal(&url.replace("/cri/", "/"), "POST", &[]).await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = upgrade_spdy(&url, &["v4.channel.k8s.io"]).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
}

#[tokio::test]
async fn a_client_that_is_too_slow_is_cut_off() {
    let served = Served::with(|config| {
        config.creation_timeout = Duration::from_millis(300);
    })
    .await;
    // One sends nothing, one an incomplete request, and one opens too few streams.
    let mut silent = TcpStream::connect(address(served.server.base_url()))
        .await
        .unwrap();
    let mut slow = TcpStream::connect(address(served.server.base_url()))
        .await
        .unwrap();
    slow.write_all(b"POST /exec/AAAA").await.unwrap();
    let (_, mut lazy) = upgrade_spdy(&served.exec("echo", ALL), &["v4.channel.k8s.io"]).await;
    let mut rest = Vec::new();
    for io in [&mut silent, &mut slow, lazy.get_mut()] {
        let _ = timeout(SOON, io.read_to_end(&mut rest)).await.unwrap();
    }
    served.settled().await;
    assert_eq!(served.runtime.running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_silent_session_is_cut_off() {
    let served = Served::with(|config| config.idle_timeout = Duration::from_millis(300)).await;
    let url = served.exec("hang", ALL);
    let (_, io) = upgrade_spdy(&url, &["v4.channel.k8s.io"]).await;
    let connection = spdy(io);
    let error = open(&connection, "error").await;
    for kind in ["stdin", "stdout", "stderr"] {
        drop(open(&connection, kind).await);
    }
    assert_eq!(timeout(SOON, text(error)).await.unwrap(), "");
    let mut socket = websocket(&served.exec("hang", ALL), "v4.channel.k8s.io").await;
    let ended = async { while let Some(Ok(_)) = socket.next().await {} };
    timeout(SOON, ended).await.unwrap();
    served.settled().await;
    assert_eq!(served.runtime.abandoned.load(Ordering::SeqCst), 2);
}

/// Connects with tungstenite's client.
async fn websocket(url: &str, protocol: &str) -> WebSocketStream<TcpStream> {
    let io = TcpStream::connect(address(url)).await.unwrap();
    let mut request = url
        .replace("http://", "ws://")
        .into_client_request()
        .unwrap();
    if !protocol.is_empty() {
        let value = HeaderValue::from_str(protocol).unwrap();
        request
            .headers_mut()
            .insert("Sec-WebSocket-Protocol", value);
    }
    let (socket, answer) = client_async(request, io).await.unwrap();
    let chosen = answer.headers().get("sec-websocket-protocol");
    assert_eq!(chosen.map_or("", |value| value.to_str().unwrap()), protocol);
    socket
}

/// Reads all messages until the close; returns the joined data of each channel.
async fn channels(socket: &mut WebSocketStream<TcpStream>, base64: bool) -> Vec<String> {
    let mut channels = vec![String::new(); 5];
    let mut first = true;
    while let Some(Ok(message)) = timeout(SOON, socket.next()).await.unwrap() {
        let (number, data) = match message {
            Message::Binary(bytes) if !base64 => (bytes[0], bytes[1..].to_vec()),
            Message::Text(text) if base64 => {
                let data = STANDARD.decode(&text.as_bytes()[1..]).unwrap();
                (text.as_bytes()[0] - b'0', data)
            }
            Message::Close(_) => continue,
            other => panic!("{other:?}"),
        };
        if first {
            assert_eq!(
                (number, data.as_slice()),
                (1, &b""[..]),
                "the first says it is there"
            );
        }
        first = false;
        channels[usize::from(number)].push_str(std::str::from_utf8(&data).unwrap());
    }
    channels
}

#[tokio::test]
async fn every_websocket_version_has_its_channels() {
    let served = Served::new().await;
    let json = "{\"status\":\"Failure\",\"message\":\"Internal error occurred: error executing command in container: [\\\"no\\\"]: no such file\",\"reason\":\"InternalError\",\"code\":500}";
    let plain =
        "Internal error occurred: error executing command in container: [\"no\"]: no such file";
    for (protocol, base64, failure, success) in [
        ("v5.channel.k8s.io", false, json, "{\"status\":\"Success\"}"),
        ("v4.channel.k8s.io", false, json, "{\"status\":\"Success\"}"),
        (
            "v4.base64.channel.k8s.io",
            true,
            json,
            "{\"status\":\"Success\"}",
        ),
        ("v3.channel.k8s.io", false, plain, ""),
        ("channel.k8s.io", false, plain, ""),
        ("base64.channel.k8s.io", true, plain, ""),
        ("", false, plain, ""),
    ] {
        let mut socket = websocket(&served.exec("say", ALL), protocol).await;
        let all = channels(&mut socket, base64).await;
        assert_eq!(all[1..4], ["out", "err", success], "{protocol}");
        let mut socket = websocket(&served.exec("no", ALL), protocol).await;
        let all = channels(&mut socket, base64).await;
        assert_eq!(all[1..4], ["", "", failure], "{protocol}");
    }
    served.settled().await;
}

#[tokio::test]
async fn input_over_websocket_ends_by_the_close_signal_or_with_the_client() {
    let served = Served::new().await;
    let mut socket = websocket(&served.exec("echo", ALL), "v5.channel.k8s.io").await;
    for message in [
        &b"\0one "[..],
        b"\0",
        b"\x07ignored",
        b"",
        b"\0two",
        &[255, 0],
    ] {
        let message = Message::Binary(message.to_vec().into());
        socket.send(message).await.unwrap();
    }
    let all = channels(&mut socket, false).await;
    assert_eq!(all[1], "one two");
    assert_eq!(all[3], "{\"status\":\"Success\"}");

    let mut socket = websocket(&served.exec("echo", ALL), "v4.base64.channel.k8s.io").await;
    socket
        .send(Message::Text("0aGVsbG8=".into()))
        .await
        .unwrap();
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) if text.len() > 1 => {
                assert_eq!(text.as_str(), "1aGVsbG8=");
                break;
            }
            _ => {}
        }
    }
    socket.close(None).await.unwrap();
    served.settled().await;
    assert_eq!(served.runtime.abandoned.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn ports_are_forwarded_in_all_forms() {
    let served = Served::new().await;
    // Stream pairs; old clients send no request IDs.
    for request_ids in [true, false] {
        let url = served.server.port_forward("s".into(), vec![]).unwrap();
        let (head, io) = upgrade_spdy(&url, &["portforward.k8s.io"]).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let connection = spdy(io);
        for (number, port) in [7, 13, 1].into_iter().enumerate() {
            let headers = |kind: &str| {
                let headers = Headers::default()
                    .with("streamType", kind)
                    .with("port", port.to_string());
                match request_ids {
                    true => headers.with("requestID", number.to_string()),
                    false => headers,
                }
            };
            let error = connection.open(headers("error")).await.unwrap();
            let (mut reader, mut writer) = connection.open(headers("data")).await.unwrap().split();
            let _ = writer.write_all(b"ping").await;
            let _ = writer.shutdown().await;
            let mut back = Vec::new();
            let _ = reader.read_to_end(&mut back).await;
            let (expected, failure) = match port {
                7 => ("ping", ""),
                13 => ("hello", ""),
                _ => (
                    "",
                    "error forwarding port 1 to pod s, uid : connection refused",
                ),
            };
            assert_eq!(String::from_utf8(back).unwrap(), expected);
            assert_eq!(text(error).await, failure);
        }
    }
    // Two channels for each port.
    for (protocol, base64) in [
        ("v4.channel.k8s.io", false),
        ("v4.base64.channel.k8s.io", true),
    ] {
        let url = served.server.port_forward("s".into(), vec![13, 1]).unwrap();
        let mut socket = websocket(&url, protocol).await;
        let mut channels = vec![Vec::new(); 4];
        while let Some(Ok(message)) = timeout(SOON, socket.next()).await.unwrap() {
            let data = message.into_data();
            let Some((number, data)) = data.split_first() else {
                continue;
            };
            match base64 {
                true if *number >= b'0' => {
                    channels[usize::from(number - b'0')].extend(STANDARD.decode(data).unwrap());
                }
                false if *number < 4 => channels[usize::from(*number)].extend(data),
                // The code of the close message.
                _ => {}
            }
        }
        assert_eq!(channels[0], b"\x0d\0hello");
        assert_eq!(channels[1], b"\x0d\0");
        assert_eq!(channels[2], b"\x01\0");
        assert_eq!(
            channels[3],
            b"\x01\0error forwarding port 1 to pod s, uid : connection refused"
        );
    }
    served.settled().await;
}

#[tokio::test]
async fn a_port_forward_stream_that_is_wrong_is_refused_alone() {
    let served = Served::with(|config| {
        config.creation_timeout = Duration::from_millis(300);
    })
    .await;
    let url = served.server.port_forward("s".into(), vec![]).unwrap();
    let (_, io) = upgrade_spdy(&url, &["portforward.k8s.io"]).await;
    let connection = spdy(io);
    let headers = |kind: &str, port: &str| {
        Headers::default()
            .with("streamType", kind)
            .with("port", port)
            .with("requestID", "9")
    };
    for (kind, port) in [
        ("data", ""),
        ("data", "0"),
        ("data", "70000"),
        ("other", "7"),
    ] {
        assert!(
            connection.open(headers(kind, port)).await.is_err(),
            "{kind} {port}"
        );
    }
    // An incomplete pair times out, and the client gets an error.
    let lonely = connection.open(headers("error", "7")).await.unwrap();
    assert_eq!(
        timeout(SOON, text(lonely)).await.unwrap(),
        "(request=9) timed out waiting for streams"
    );
    let _error = connection.open(headers("error", "7")).await.unwrap();
    let (mut reader, mut writer) = connection.open(headers("data", "7")).await.unwrap().split();
    writer.write_all(b"fine").await.unwrap();
    let mut back = [0; 4];
    reader.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"fine");
}

/// Arbitrary bytes after an upgrade end that session at most.
#[tokio::test]
async fn nonsense_ends_its_session_alone() {
    let served = Served::new().await;
    let mut state = 7_u32;
    for round in 0..60 {
        let url = served.exec("echo", ALL);
        let (_, mut io) = match round % 2 {
            0 => upgrade_spdy(&url, &["v4.channel.k8s.io"]).await,
            _ => {
                let headers = [
                    "Connection: Upgrade",
                    "Upgrade: websocket",
                    "Sec-WebSocket-Version: 13",
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                    "Sec-WebSocket-Protocol: v5.channel.k8s.io",
                ];
                request(&url, "GET", &headers).await
            }
        };
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(2000)
        .collect();
        let _ = io.write_all(&noise).await;
    }
    served.settled().await;
    assert_eq!(served.runtime.running.load(Ordering::SeqCst), 0);
}
