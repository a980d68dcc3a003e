//! Limits of the secure port, and the capacity that they leave to other clients.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use futures::future::join_all;
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    client::{Answer, Caller, read_head},
    node::Node,
    streams::streaming_server,
};

/// The deadline for clients that are served: the server closes connections without a request after
/// ten seconds, which must not be what helps.
const SOON: Duration = Duration::from_secs(9);
/// The limit of connections to the secure port.
const ROOM: usize = 1024;

/// Connects from a loopback address, and sends nothing.
async fn connect(node: &Node, from: [u8; 4]) -> TcpStream {
    let address: SocketAddr = node.stranger.address.parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Whether the server closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Waits until at most `most` of the connections are open.
async fn until_left(streams: &[TcpStream], most: usize) {
    let left = || streams.iter().filter(|stream| !is_closed(stream)).count();
    let few_are_left = async {
        while left() > most {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(SOON, few_are_left).await;
    assert!(waited.is_ok(), "{} of {} are left", left(), streams.len());
}

async fn get(caller: &Caller, path: &str) -> Answer {
    let answer = timeout(SOON, caller.get(path)).await;
    answer.unwrap_or_else(|_| panic!("no answer to {path} in time"))
}

/// The value of a sample on the `/metrics` page.
fn sample(page: &str, series: &str) -> u64 {
    let mut values = page.lines().filter_map(|line| line.strip_prefix(series));
    let value = values
        .next()
        .unwrap_or_else(|| panic!("{series} is not in {page}"));
    value.trim().parse().unwrap()
}

#[tokio::test]
async fn strangers_of_many_addresses_leave_room_for_callers() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let mut silent = Vec::new();
    for n in 0..ROOM {
        let last = u8::try_from(n % 128 + 1).unwrap();
        silent.push(connect(&node, [127, 0, 1, last]).await);
    }
    for path in ["/healthz", "/pods"] {
        assert_eq!(get(&admin, path).await.status, 200, "{path}");
    }
    until_left(&silent, ROOM / 4).await;
    let page = get(&admin, "/metrics").await.body;
    let series = "kubelet_server_bounds_reached_total{server=\"secure\",bound=\"strangers\"}";
    assert!(sample(&page, series) > 0);
}

#[tokio::test]
async fn strangers_of_one_address_make_room_for_each_other() {
    let node = Node::in_cluster().await;
    let other = connect(&node, [127, 0, 0, 3]).await;
    let mut silent = Vec::new();
    for _ in 0..ROOM {
        silent.push(connect(&node, [127, 0, 0, 1]).await);
    }
    // The administrator connects from the same address.
    assert_eq!(get(&node.admin(), "/healthz").await.status, 200);
    until_left(&silent, ROOM / 8).await;
    assert!(is_closed(&silent[0]) && !is_closed(&other));
}

#[tokio::test]
async fn followed_logs_leave_places_for_other_requests() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let admin = node.admin();
    let path = "/containerLogs/default/web/app?follow=true";
    let follow = || async {
        let mut stream = admin.send("GET", path, &[], "").await.ok()?;
        let head = read_head(&mut stream).await;
        Some((stream, head))
    };
    let mut followed = Vec::new();
    for _ in 0..ROOM / 32 {
        let some = join_all((0..32).map(|_| follow())).await;
        followed.extend(some.into_iter().flatten());
        if followed.iter().any(|(_, head)| head.contains(" 429 ")) {
            break;
        }
    }
    for path in [
        "/healthz",
        "/pods",
        "/metrics",
        "/containerLogs/default/web/app",
    ] {
        assert_eq!(get(&admin, path).await.status, 200, "{path}");
    }
    let answer = timeout(
        SOON,
        admin.request("POST", "/run/default/web/app?cmd=true", ""),
    );
    assert_eq!(answer.await.unwrap().status, 200, "a short command");
    let served = followed.iter().filter(|(_, head)| head.contains(" 200 "));
    assert_eq!(served.count(), ROOM / 2);
    let answer = get(&admin, path).await;
    assert_eq!(answer.status, 429);
    assert!(answer.head.contains("retry-after: "), "{answer:?}");
    assert!(answer.body.contains("512"), "{answer:?}");
    let page = get(&admin, "/metrics").await.body;
    let series = "kubelet_server_bounds_reached_total{server=\"secure\",bound=\"followed_logs\"}";
    assert!(sample(&page, series) > 0);

    // Places become free again.
    followed.clear();
    let again = async {
        while follow()
            .await
            .is_none_or(|(_, head)| !head.contains(" 200 "))
        {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, again).await.unwrap();
}

#[tokio::test]
async fn each_kind_of_stream_has_places_of_its_own() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let admin = node.admin();
    let exec = "/exec/default/web/app?command=sh&output=1";
    let kinds = [
        (exec, "commands"),
        ("/attach/default/web/app?output=1", "attached"),
        ("/portForward/default/web", "port_forwards"),
    ];
    let open = |path: &'static str| {
        let admin = admin.clone();
        async move {
            let headers = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
            let mut stream = admin.send("POST", path, &headers, "").await.ok()?;
            let head = timeout(SOON, read_head(&mut stream)).await.ok()?;
            Some((stream, head))
        }
    };
    for (path, bound) in kinds {
        // The other kinds have limits of their own. The runtime's own path of this kind shares its
        // limit.
        let mut streams = Vec::new();
        for _ in 0..ROOM / 4 / 32 {
            let some = join_all((0..32).map(|_| open(path))).await;
            streams.extend(some.into_iter().flatten());
        }
        let upgraded = |(_, head): &&(_, String)| head.contains(" 101 ");
        assert_eq!(streams.iter().filter(upgraded).count(), ROOM / 4, "{path}");
        let (_, head) = open(path).await.unwrap();
        assert!(head.contains(" 429 "), "{path}: {head}");
        for (other, _) in kinds.iter().filter(|(other, _)| *other != path) {
            let (_, head) = open(other).await.unwrap();
            assert!(head.contains(" 101 "), "{other} beside {path}: {head}");
        }
        let (_, head) = match path {
            path if path == exec => open("/cri/exec/token").await.unwrap(),
            path if path.starts_with("/attach") => open("/cri/attach/token").await.unwrap(),
            _ => open("/cri/portforward/token").await.unwrap(),
        };
        assert!(head.contains(" 429 "), "{path} by its token: {head}");
        let page = get(&admin, "/metrics").await.body;
        let series =
            format!("kubelet_server_bounds_reached_total{{server=\"secure\",bound=\"{bound}\"}}");
        assert!(sample(&page, &series) >= 2, "{bound}");
    }
}
