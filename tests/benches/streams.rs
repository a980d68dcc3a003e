//! How much goes through exec and port-forward, beside a plain TCP relay on the same
//! machine, and what the shim needs for it: `make bench`. Asserts that every byte arrives
//! and nothing about speed.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::{
    fs,
    net::{Ipv4Addr, TcpListener as StdListener},
    time::{Duration, Instant},
};

use cri_streaming::{
    Reader, Wants, Writer,
    client::{Forwarded, Transport},
};
use e2e::{
    cri::{Cri, host_sandbox},
    node::Node,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Through a forwarded port, each way, and through a command, there and back.
const FORWARDED: usize = 1024 * MIB;
const EXECUTED: usize = 300 * MIB;
const MIB: usize = 1024 * 1024;
const BLOCK: usize = 128 * 1024;
/// Each figure is the median of so many.
const RUNS: usize = 3;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // `cargo test --benches` passes other flags; there is nothing to test here.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pid = node.shim_pid().unwrap();
    println!(
        "{:<44} {:>14} {:>14}",
        "figure", "to the pod", "from the pod"
    );

    let relay = relay().await;
    let mut plain = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (direction, rates) in plain.iter_mut().enumerate() {
            let (reader, writer) = TcpStream::connect(relay).await.unwrap().into_split();
            rates.push(
                transfer(
                    direction,
                    Box::new(tokio::io::BufReader::with_capacity(BLOCK, reader)),
                    Box::new(writer),
                )
                .await,
            );
        }
    }
    let plain = plain.map(median);
    row("plain TCP relay", plain);

    let pod = cri.run(&host_sandbox("host")).await.unwrap();
    let port = serve_in(&format!("/proc/{}/ns/net", node.engine().netns()));
    let before = memory(pid, "VmRSS");
    for (name, transport) in [
        ("port-forward over SPDY", Transport::Spdy),
        ("port-forward over WebSocket", Transport::WebSocket),
    ] {
        let forwarder = cri.port_forward(&pod, transport).await.unwrap();
        let mut forwarded = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            for (direction, rates) in forwarded.iter_mut().enumerate() {
                let Forwarded {
                    reader,
                    writer,
                    error: _error,
                } = forwarder.connect(port).await.unwrap();
                rates.push(transfer(direction, reader, writer).await);
            }
        }
        let forwarded = forwarded.map(median);
        row(name, forwarded);
        println!(
            "{:<44} {:>13.0}% {:>13.0}%",
            "  of the relay (50 % is wanted)",
            forwarded[0] / plain[0] * 100.0,
            forwarded[1] / plain[1] * 100.0,
        );
    }

    let (_, id) = cri.run_pod("exec", &["sleep", "100000"]).await.unwrap();
    for (name, transport) in [
        ("exec cat over SPDY, 300 MiB and back", Transport::Spdy),
        (
            "exec cat over WebSocket, 300 MiB and back",
            Transport::WebSocket,
        ),
    ] {
        let rate = execute(&mut cri, &id, transport).await;
        println!("{name:<44} {rate:>9.0} MiB/s");
    }
    println!(
        "{:<44} {:>10.1} MiB, at most {:.1} MiB, at the end {:.1} MiB",
        "shim memory (RSS) before",
        before,
        memory(pid, "VmHWM"),
        memory(pid, "VmRSS"),
    );
}

fn row(name: &str, [to, from]: [f64; 2]) {
    println!("{name:<44} {to:>8.0} MiB/s {from:>8.0} MiB/s");
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn memory(pid: u32, what: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

/// The other end of each transfer, in a network namespace; returns its port.
fn serve_in(namespace: &str) -> u16 {
    let namespace = fs::File::open(namespace).unwrap();
    let listener = std::thread::spawn(move || {
        let into = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), into).unwrap();
        StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    });
    let listener = listener.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(listener));
    port
}

/// Reads all and tells how much it was, or sends all, by the first byte.
async fn serve(listener: TcpListener) {
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut buffer = vec![0; BLOCK];
            if socket.read_u8().await.unwrap() == 0 {
                let mut sum = 0_u64;
                loop {
                    match socket.read(&mut buffer).await.unwrap() {
                        0 => break,
                        length => sum += length as u64,
                    }
                }
                socket.write_u64(sum).await.unwrap();
            } else {
                for _ in 0..FORWARDED / BLOCK {
                    socket.write_all(&buffer).await.unwrap();
                }
            }
        });
    }
}

/// What the port-forward is measured against.
async fn relay() -> std::net::SocketAddr {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = target.local_addr().unwrap();
    tokio::spawn(serve(target));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}

/// MiB a second to the server (0) or from it (1).
async fn transfer(direction: usize, mut reader: Reader, mut writer: Writer) -> f64 {
    let block = vec![0; BLOCK];
    let started = Instant::now();
    if direction == 0 {
        writer.write_u8(0).await.unwrap();
        for _ in 0..FORWARDED / BLOCK {
            writer.write_all(&block).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        assert_eq!(reader.read_u64().await.unwrap(), FORWARDED as u64);
    } else {
        writer.write_u8(1).await.unwrap();
        writer.flush().await.unwrap();
        assert_eq!(drain(&mut reader).await, FORWARDED);
    }
    rate(FORWARDED, started.elapsed())
}

async fn drain(reader: &mut Reader) -> usize {
    use tokio::io::AsyncBufReadExt as _;
    let mut sum = 0;
    loop {
        let length = reader.fill_buf().await.unwrap().len();
        if length == 0 {
            return sum;
        }
        reader.consume(length);
        sum += length;
    }
}

fn rate(bytes: usize, time: Duration) -> f64 {
    (bytes / MIB) as f64 / time.as_secs_f64()
}

async fn execute(cri: &mut Cri, id: &str, transport: Transport) -> f64 {
    let wants = Wants {
        stdin: true,
        stdout: true,
        ..Wants::default()
    };
    let started = Instant::now();
    let mut command = cri
        .exec_streams(id, &["cat"], wants, transport)
        .await
        .unwrap();
    let mut stdin = command.stdin.take().unwrap();
    let sending = tokio::spawn(async move {
        let mut state = 1_u64;
        let mut sum = 0_u64;
        for _ in 0..EXECUTED / BLOCK {
            let block = next_block(&mut state);
            sum = checksum(sum, &block);
            stdin.write_all(&block).await.unwrap();
        }
        stdin.shutdown().await.unwrap();
        sum
    });
    let mut stdout = command.stdout.take().unwrap();
    let mut back = vec![0; BLOCK];
    let mut sum = 0;
    for _ in 0..EXECUTED / BLOCK {
        stdout.read_exact(&mut back).await.unwrap();
        sum = checksum(sum, &back);
    }
    assert_eq!(
        sum,
        sending.await.unwrap(),
        "what comes back is something else"
    );
    assert!(command.status.wait().await.unwrap().is_success());
    rate(EXECUTED, started.elapsed())
}

fn next_block(state: &mut u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()
    });
    words.take(BLOCK / 8).flatten().collect()
}

/// Of 8 bytes at a time, in their order.
fn checksum(sum: u64, block: &[u8]) -> u64 {
    let words = block
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.fold(sum, |sum, word| sum.rotate_left(5).wrapping_add(word))
}
