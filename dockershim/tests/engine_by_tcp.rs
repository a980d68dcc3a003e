//! An engine that is reached by TCP.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{fs, path::PathBuf};

use bollard::query_parameters::EventsOptions;
use dockershim::engine::Engine;
use futures::StreamExt as _;
use support::{FakeEngine, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
};

/// Clock ticks in a second, as the kernel counts for processes.
const TICKS: u32 = 100;

/// A port behind which the engine's socket is.
async fn by_tcp(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut engine = UnixStream::connect(socket).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    port
}

/// Of each established connection to `port`, in how many ticks it is probed; none for one that
/// is not.
fn probed_in(port: u16) -> Vec<Option<u32>> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let connections = table.lines().filter_map(|line| {
        // Number, local address, remote address, state (01: established), queues, timer
        // (02: keepalive).
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, remote, "01", _, timer, ..] = columns[..] else {
            return None;
        };
        let (kind, ticks) = timer.split_once(':').unwrap();
        remote
            .ends_with(&port)
            .then(|| (kind == "02").then(|| u32::from_str_radix(ticks, 16).unwrap()))
    });
    connections.collect()
}

#[tokio::test]
async fn every_connection_is_probed_for_an_engine_that_is_gone() {
    let fake = FakeEngine::start();
    let port = by_tcp(fake.socket.clone()).await;
    let engine = Engine::new(format!("tcp://127.0.0.1:{port}").parse().unwrap());
    engine.connect().await.unwrap();
    let mut events = Box::pin(engine.events(EventsOptions::default()).unwrap());
    let _command = engine.start_exec("cat", false).await.unwrap();
    let follow = async { events.next().await.unwrap().unwrap() };
    let both_are_probed = eventually("both connections are probed within 15 s", || {
        let probed = probed_in(port);
        let soon = |ticks: &Option<u32>| ticks.is_some_and(|ticks| ticks <= 15 * TICKS);
        probed.len() == 2 && probed.iter().all(soon)
    });
    tokio::select! {
        event = follow => panic!("an event of nothing: {event:?}"),
        () = both_are_probed => {}
    }
}

#[tokio::test]
async fn the_engine_hears_the_end_of_a_commands_input_and_the_shim_the_end_of_its_output() {
    let fake = FakeEngine::start();
    let port = by_tcp(fake.socket.clone()).await;
    let engine = Engine::new(format!("tcp://127.0.0.1:{port}").parse().unwrap());
    engine.connect().await.unwrap();
    let (mut output, mut input) = engine.start_exec("cat", false).await.unwrap();
    input.write_all(b"hello").await.unwrap();
    input.shutdown().await.unwrap();
    let mut written = String::new();
    output.read_to_string(&mut written).await.unwrap();
    assert_eq!(written, "hello");
}
