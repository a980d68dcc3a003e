//! How much goes through exec and port-forward, beside a plain TCP relay on the same
//! machine, and what the shim needs for it: `make bench`. Asserts that every byte arrives
//! and nothing about speed.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::{
    fs,
    io::BufRead as _,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cri_streaming::{
    Reader, RequestedStreams, Writer,
    client::{Forwarded, Transport},
};
use e2e::{
    cri::{Cri, host_sandbox},
    figures::{Figures, Unit},
    node::Node,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream},
};

/// Through a forwarded port, each way, and through a command, there and back.
const FORWARDED: usize = 1024 * MIB;
const EXECUTED: usize = 300 * MIB;
const MIB: usize = 1024 * 1024;
const BLOCK: usize = 128 * 1024;
/// What the shim reads at once when a lot comes.
const RELAYED: usize = 256 * 1024;
/// What has this program be the relay.
const RELAY: &str = "relay";
const WAYS: [&str; 2] = ["to the pod", "from the pod"];
const TRANSPORTS: [(Transport, &str); 2] = [
    (Transport::Spdy, "SPDY"),
    (Transport::WebSocket, "WebSocket"),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let [_, relay, target] = &arguments[..]
        && relay == RELAY
    {
        return relay_to(target.parse().unwrap()).await;
    }
    // `cargo test --benches` passes other flags; there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pid = node.shim_pid().unwrap();
    let relay = Relay::start();
    let pod = cri.run(&host_sandbox("host")).await.unwrap();
    let (_, container) = cri.run_pod("exec", &["sleep", "100000"]).await.unwrap();
    let port = serve_in(&format!("/proc/{}/ns/net", node.engine().netns()));
    let mut figures = Figures::default();
    for run in 1..=Figures::runs() {
        eprintln!("run {run} of {}", Figures::runs());
        figures.add(
            "shim memory (RSS) before",
            memory(pid, "VmRSS"),
            Unit::Mebibytes,
            "",
        );
        let plain = plain(&relay, &mut figures).await;
        for (transport, name) in TRANSPORTS {
            forward(&mut cri, &pod, port, transport, name, plain, &mut figures).await;
        }
        for (transport, name) in TRANSPORTS {
            let rate = execute(&mut cri, &container, transport).await;
            let figure = format!("exec cat over {name}, 300 MiB and back");
            figures.add(&figure, rate, Unit::MebibytesPerSecond, "");
        }
        for (figure, what) in [
            ("shim memory (RSS) at most", "VmHWM"),
            ("shim memory (RSS) after", "VmRSS"),
        ] {
            figures.add(figure, memory(pid, what), Unit::Mebibytes, "");
        }
    }
    print!("{figures}");
}

/// What goes through the relay, in each direction.
async fn plain(relay: &Relay, figures: &mut Figures) -> [f64; 2] {
    let mut rates = [0.0; 2];
    for (direction, way) in WAYS.iter().enumerate() {
        let (reader, writer) = TcpStream::connect(relay.address)
            .await
            .unwrap()
            .into_split();
        let reader = tokio::io::BufReader::with_capacity(BLOCK, reader);
        rates[direction] = transfer(direction, Box::new(reader), Box::new(writer)).await;
        let figure = format!("plain TCP relay, {way}");
        figures.add(&figure, rates[direction], Unit::MebibytesPerSecond, "");
    }
    rates
}

/// What goes through a forwarded port, in each direction, also as a share of `plain`.
async fn forward(
    cri: &mut Cri,
    pod: &str,
    port: u16,
    transport: Transport,
    name: &str,
    plain: [f64; 2],
    figures: &mut Figures,
) {
    let forwarder = cri.port_forward(pod, transport).await.unwrap();
    for (direction, way) in WAYS.iter().enumerate() {
        let Forwarded {
            reader,
            writer,
            error: _error,
        } = forwarder.connect(port).await.unwrap();
        let rate = transfer(direction, reader, writer).await;
        let figure = format!("port-forward over {name}, {way}");
        figures.add(&figure, rate, Unit::MebibytesPerSecond, "");
        figures.add(
            &format!("{figure}, of the relay"),
            rate / plain[direction] * 100.0,
            Unit::Percent,
            ">= 50 %",
        );
    }
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

/// What the port-forward is measured against: a process in the middle, as the shim is one, whose
/// buffers are as large as the shim's. It ends when this is dropped.
struct Relay {
    child: Child,
    address: SocketAddr,
}

impl Relay {
    /// A relay to a server of this process.
    fn start() -> Self {
        let target = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        target.set_nonblocking(true).unwrap();
        let target = TcpListener::from_std(target).unwrap();
        let to = target.local_addr().unwrap();
        tokio::spawn(serve(target));
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--"])
            .arg(std::env::current_exe().unwrap())
            .args([RELAY, &to.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufReader::new(stdout)
            .read_line(&mut address)
            .unwrap();
        let address = address.trim().parse().unwrap();
        Self { child, address }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The relay's own process: writes where it listens.
async fn relay_to(target: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(target).await.unwrap();
        tokio::spawn(async move {
            let _ = copy_bidirectional_with_sizes(&mut near, &mut far, RELAYED, RELAYED).await;
        });
    }
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
    let requested = RequestedStreams {
        stdin: true,
        stdout: true,
        ..RequestedStreams::default()
    };
    let started = Instant::now();
    let mut command = cri
        .exec_streams(id, &["cat"], requested, transport)
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
