//! Unauthenticated clients that open many connections to a node's port and never send a request.

use std::{net::SocketAddr, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use super::lone_kubelet::LoneKubelet;

const CONNECTIONS: usize = 1000;
/// The default soft limit of service managers.
const FILES: u64 = 1024;

async fn connect(to: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn a_thousand_idle_strangers_keep_nobody_from_the_secure_port() {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Resource::Nofile, most).unwrap();
    let kubelet = LoneKubelet::start(FILES, "").await;
    let to = SocketAddr::from(([127, 0, 0, 1], kubelet.port));
    for addresses in [1, 8, 250] {
        let mut strangers = Vec::new();
        for n in 0..CONNECTIONS {
            let last = u8::try_from(n % addresses + 1).unwrap();
            let connected = timeout(Duration::from_secs(5), connect(to, [127, 0, 0, last]));
            let connected = connected.await;
            strangers.push(connected.unwrap_or_else(|_| panic!("stranger {n} is not accepted")));
        }
        for path in ["/healthz", "/pods", "/metrics"] {
            let answer = kubelet.get(path).await;
            let answer = answer.unwrap_or_else(|why| panic!("{path}: {why}\n{}", kubelet.log()));
            assert!(!answer.is_empty(), "{path}");
        }
        let some_are_left = async {
            while kubelet.open_files() > 256 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(Duration::from_secs(5), some_are_left).await;
        assert!(waited.is_ok(), "{} files are open", kubelet.open_files());
    }
    // One message, regardless of the number of connections.
    let log = kubelet.log();
    assert_eq!(log.matches("bound=\"strangers\"").count(), 1, "{log}");
}
