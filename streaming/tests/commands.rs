//! Exec and attach with this crate's client, over both transports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::atomic::Ordering;

use cri_streaming::{
    Attach, RequestedStreams, TerminalSize,
    client::{Client, ClientError, Command, Transport},
};
use support::{ALL, Served, TTY, pattern};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const BOTH: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];

async fn start(
    served: &Served,
    transport: Transport,
    command: &str,
    requested: RequestedStreams,
) -> Command {
    let url = served.exec(command, requested);
    Client::default()
        .command(&url, transport, requested)
        .await
        .unwrap()
}

#[tokio::test]
async fn input_comes_back_whole_and_its_end_ends_the_command() {
    let served = Served::new().await;
    for transport in BOTH {
        let mut command = start(&served, transport, "echo", ALL).await;
        let data = pattern(5_000_000);
        let mut stdin = command.stdin.take().unwrap();
        let sent = data.clone();
        let sending = tokio::spawn(async move {
            stdin.write_all(&sent).await.unwrap();
            stdin.shutdown().await.unwrap();
            stdin
        });
        let mut back = Vec::new();
        let stdout = command.stdout.take().unwrap();
        stdout
            .take(data.len() as u64)
            .read_to_end(&mut back)
            .await
            .unwrap();
        assert!(back == data, "{transport:?}: {} bytes differ", back.len());
        assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(0));
        sending.await.unwrap();
    }
    served.settled().await;
}

#[tokio::test]
async fn exit_codes_and_errors_come_back() {
    let served = Served::new().await;
    for transport in BOTH {
        for code in [0, 1, 42, 126, 127, 137] {
            let command = start(&served, transport, &format!("exit {code}"), ALL).await;
            let status = command.status.wait().await.unwrap();
            assert_eq!(status.exit_code(), Some(code), "{transport:?}");
        }
        let command = start(&served, transport, "nonsense", ALL).await;
        let status = command.status.wait().await.unwrap();
        assert_eq!(status.code, 500);
        assert_eq!(
            status.message,
            "Internal error occurred: error executing command in container: [\"nonsense\"]: no such file"
        );
    }
    served.settled().await;
}

#[tokio::test]
async fn outputs_are_kept_apart_and_come_before_the_end() {
    let served = Served::new().await;
    for transport in BOTH {
        let mut command = start(&served, transport, "say", ALL).await;
        assert!(command.status.wait().await.unwrap().is_success());
        let (mut out, mut err) = (String::new(), String::new());
        command
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut out)
            .await
            .unwrap();
        command
            .stderr
            .as_mut()
            .unwrap()
            .read_to_string(&mut err)
            .await
            .unwrap();
        assert_eq!(
            (out.as_str(), err.as_str()),
            ("out", "err"),
            "{transport:?}"
        );

        let mut command = start(&served, transport, "burst 3000000", ALL).await;
        let mut out = Vec::new();
        command
            .stdout
            .as_mut()
            .unwrap()
            .read_to_end(&mut out)
            .await
            .unwrap();
        assert!(out == pattern(3_000_000), "{transport:?}");
        assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(3));
    }
    served.settled().await;
}

#[tokio::test]
async fn the_terminal_s_size_is_told() {
    let served = Served::new().await;
    for transport in BOTH {
        let mut command = start(&served, transport, "sizes 2", TTY).await;
        let mut resizer = command.resizer.take().unwrap();
        for (width, height) in [(80, 24), (132, 50)] {
            resizer
                .resize(TerminalSize { width, height })
                .await
                .unwrap();
        }
        let mut out = String::new();
        command
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut out)
            .await
            .unwrap();
        assert_eq!(out, "80x24\n132x50\n", "{transport:?}");
        assert!(command.status.wait().await.unwrap().is_success());
    }
    served.settled().await;
}

#[tokio::test]
async fn attach_has_the_same_streams() {
    let served = Served::new().await;
    for transport in BOTH {
        let attach = |container_id: &str| Attach {
            container_id: container_id.into(),
            requested: ALL,
        };
        let url = served.server.attach(attach("echo")).unwrap();
        let mut command = Client::default()
            .command(&url, transport, ALL)
            .await
            .unwrap();
        let mut stdin = command.stdin.take().unwrap();
        stdin.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        command
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut back)
            .await
            .unwrap();
        assert_eq!(&back, b"hello");
        stdin.shutdown().await.unwrap();
        assert!(command.status.wait().await.unwrap().is_success());

        let url = served.server.attach(attach("nothing")).unwrap();
        let command = Client::default()
            .command(&url, transport, ALL)
            .await
            .unwrap();
        assert_eq!(
            command.status.wait().await.unwrap().message,
            "Internal error occurred: error attaching to container: [\"nothing\"]: no such file"
        );
    }
    served.settled().await;
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed() {
    let served = Served::new().await;
    for (number, transport) in BOTH.into_iter().enumerate() {
        for (which, script) in ["hang", "echo"].into_iter().enumerate() {
            let command = start(&served, transport, script, ALL).await;
            drop(command);
            served.settled().await;
            let abandoned = served.runtime.abandoned.load(Ordering::SeqCst);
            assert!(
                abandoned > 2 * number + which || script == "echo",
                "{transport:?} {script}"
            );
        }
        assert!(served.runtime.abandoned.load(Ordering::SeqCst) > number);
    }
}

#[tokio::test]
async fn a_panic_costs_its_session_alone() {
    let served = Served::new().await;
    for transport in BOTH {
        let mut other = start(&served, transport, "echo", ALL).await;
        let broken = start(&served, transport, "panic", ALL).await;
        broken.status.wait().await.unwrap_err();
        let mut stdin = other.stdin.take().unwrap();
        stdin.write_all(b"still here").await.unwrap();
        stdin.shutdown().await.unwrap();
        assert!(other.status.wait().await.unwrap().is_success());
    }
}

#[tokio::test]
async fn many_sessions_run_at_once() {
    let served = Served::new().await;
    for transport in BOTH {
        let mut commands = Vec::new();
        for _ in 0..200 {
            commands.push(start(&served, transport, "echo", ALL).await);
        }
        assert_eq!(served.runtime.running.load(Ordering::SeqCst), 200);
        for (number, command) in commands.iter_mut().enumerate() {
            let text = format!("{number:03}");
            let stdin = command.stdin.as_mut().unwrap();
            stdin.write_all(text.as_bytes()).await.unwrap();
            let mut back = [0; 3];
            command
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut back)
                .await
                .unwrap();
            assert_eq!(back, text.as_bytes());
            command.stdin.as_mut().unwrap().shutdown().await.unwrap();
        }
        for command in commands {
            assert!(command.status.wait().await.unwrap().is_success());
        }
        served.settled().await;
    }
}

#[tokio::test]
async fn a_stopping_server_ends_its_sessions_and_takes_no_new_ones() {
    let served = Served::new().await;
    let hanging = start(&served, Transport::Spdy, "hang", ALL).await;
    let late = served.exec("echo", ALL);
    served.stop.cancel();
    served.task.await.unwrap();
    assert_eq!(served.runtime.abandoned.load(Ordering::SeqCst), 1);
    hanging.status.wait().await.unwrap_err();
    let refused = Client::default().command(&late, Transport::Spdy, ALL).await;
    assert!(matches!(refused, Err(ClientError::Io { .. })));
}
