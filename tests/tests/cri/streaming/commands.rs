//! Exec and ExecSync.

use std::time::Duration;

use bollard::query_parameters::InspectContainerOptions;
use cri_streaming::{
    RequestedStreams, TerminalSize,
    client::{Client, ClientError, Command, Transport},
};
use e2e::{cri::Cri, node::Node};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use super::{
    ALL, BOTH, OUTPUTS, SOON, TTY, await_handles, exchange, finish, handles, read_until, say,
};

/// Runs a shell script.
async fn sh(
    cri: &mut Cri,
    id: &str,
    script: &str,
    requested: RequestedStreams,
    over: Transport,
) -> Command {
    let command = ["sh", "-c", script];
    cri.exec_streams(id, &command, requested, over)
        .await
        .unwrap()
}

async fn exec_ids(node: &Node, id: &str) -> usize {
    let docker = node.docker().unwrap();
    let inspect = docker.inspect_container(id, None::<InspectContainerOptions>);
    inspect.await.unwrap().exec_ids.unwrap_or_default().len()
}

#[tokio::test]
async fn a_command_s_streams_and_its_end_reach_the_client() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    for transport in BOTH {
        let script = "echo out; echo err >&2; exit 42";
        let ended = finish(sh(&mut cri, &id, script, OUTPUTS, transport).await).await;
        assert_eq!(ended, ("out\n".into(), "err\n".into(), Some(42)));

        for (script, code) in [
            ("exit 0", 0),
            ("exit 1", 1),
            ("exit 126", 126),
            ("nosuchprogram", 127),
            ("kill -9 $$", 137),
            ("kill -15 $$", 143),
        ] {
            let (_, _, ended) = finish(sh(&mut cri, &id, script, OUTPUTS, transport).await).await;
            assert_eq!(ended, Some(code), "{transport:?} {script}");
        }
    }
}

#[tokio::test]
async fn input_comes_back_identical_and_its_end_reaches_the_command() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let size = 20 * 1024 * 1024;
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["cat"], ALL, transport)
            .await
            .unwrap();
        let mut stdin = command.stdin.take().unwrap();
        let sending = tokio::spawn(async move {
            let mut digest = Digest::default();
            for block in blocks(size) {
                digest.add(&block);
                stdin.write_all(&block).await.unwrap();
            }
            stdin.shutdown().await.unwrap();
            digest.end()
        });
        let mut digest = Digest::default();
        let mut buffer = vec![0; 64 * 1024];
        let mut stdout = command.stdout.take().unwrap();
        loop {
            let length = stdout.read(&mut buffer).await.unwrap();
            if length == 0 {
                break;
            }
            digest.add(&buffer[..length]);
            if digest.1 == size {
                break;
            }
        }
        assert_eq!(digest.end(), sending.await.unwrap(), "{transport:?}");
        assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(0));
    }
}

#[derive(Default)]
struct Digest(sha2::Sha256, usize);

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        sha2::Digest::update(&mut self.0, bytes);
        self.1 += bytes.len();
    }

    fn end(self) -> (String, usize) {
        (format!("{:x}", sha2::Digest::finalize(self.0)), self.1)
    }
}

/// Non-repeating bytes, in blocks of odd sizes.
fn blocks(size: usize) -> impl Iterator<Item = Vec<u8>> + Send {
    let mut state = 1_u64;
    let mut left = size;
    std::iter::from_fn(move || {
        let length = left.min(70_001);
        left -= length;
        let mut block = vec![0; length];
        for bytes in block.chunks_mut(8) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            bytes.copy_from_slice(&state.to_le_bytes()[..bytes.len()]);
        }
        (length > 0).then_some(block)
    })
}

#[tokio::test]
async fn a_terminal_has_a_size_and_its_keys_reach_the_program() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["sh"], TTY, transport)
            .await
            .unwrap();
        let mut resizer = command.resizer.take().unwrap();
        let mut resize = async |width, height| {
            let size = TerminalSize { width, height };
            resizer.resize(size).await.unwrap();
        };
        resize(100, 30).await;
        read_until(&mut command, "# ").await;
        // A resize is not ordered relative to input.
        say(
            &mut command,
            "until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; echo fir''st\n",
        )
        .await;
        read_until(&mut command, "first").await;
        resize(90, 20).await;
        say(
            &mut command,
            "until [ \"$(stty size)\" = '20 90' ]; do sleep 0.1; done; echo sec''ond\n",
        )
        .await;
        read_until(&mut command, "second").await;

        // Ctrl-C ends the foreground program, not the shell. The program prints when it is running.
        say(
            &mut command,
            "sh -c 'echo wait\"\"ing; exec sleep 1000'; echo now $?\n",
        )
        .await;
        read_until(&mut command, "waiting").await;
        say(&mut command, "\x03").await;
        say(&mut command, "echo still he''re\n").await;
        read_until(&mut command, "still here").await;
        // The program receives Ctrl-P; it does not start one of the engine's detach keys.
        say(&mut command, "stty -icanon -echo; echo r''eady; head=$(sh -c 'read -n 1 x; printf %s \"$x\" | wc -c'); echo got$head\n").await;
        read_until(&mut command, "ready").await;
        say(&mut command, "\x10").await;
        read_until(&mut command, "got1").await;
        // Ctrl-D ends the shell, with the last exit code.
        say(&mut command, "stty icanon echo; (exit 7)\n").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        say(&mut command, "\x04").await;
        let (_, _, code) = finish(command).await;
        assert_eq!(code, Some(7), "{transport:?}");
    }
}

#[tokio::test]
async fn what_does_not_run_is_refused_by_name() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let late = cri.exec_url(&id, &["true"], OUTPUTS).await.unwrap();
    let mut forwarder = cri.port_forward(&pod, Transport::Spdy).await.unwrap();
    cri.stop(&id, 0).await.unwrap();

    let refused = cri.exec_url(&id, &["true"], OUTPUTS).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("CONTAINER_EXITED"), "{refused}");
    let refused = cri.exec_url("nosuch", &["true"], OUTPUTS).await;
    assert_eq!(refused.unwrap_err().code(), Code::NotFound);
    for (requested, reason) in [
        (
            RequestedStreams::default(),
            "one of stdin, stdout, or stderr must be set",
        ),
        (
            RequestedStreams {
                stderr: true,
                ..TTY
            },
            "tty and stderr cannot both be true",
        ),
    ] {
        let refused = cri.exec_url(&id, &["true"], requested).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(reason), "{refused}");
    }

    // A session prepared before the container ended reports this on the error stream.
    let client = Client::default();
    let command = client
        .command(&late, Transport::Spdy, OUTPUTS)
        .await
        .unwrap();
    let status = command.status.wait().await.unwrap();
    assert_eq!(status.code, 500);
    assert!(
        status.message.contains("CONTAINER_EXITED"),
        "{}",
        status.message
    );
    // A token is valid only once.
    match client.command(&late, Transport::Spdy, OUTPUTS).await {
        Err(ClientError::Refused { status, text }) => {
            assert_eq!(
                (status.as_u16(), text.as_str()),
                (404, "404 page not found")
            );
        }
        other => panic!("{:?}", other.map(|_| ())),
    }

    cri.stop_pod(&pod).await.unwrap();
    let (_, error) = exchange(forwarder.connect(80).await.unwrap(), b"").await;
    assert!(error.contains("is not ready"), "{error}");
    forwarder = cri.port_forward(&pod, Transport::Spdy).await.map_or_else(
        |error| {
            assert!(error.to_string().contains("is not ready"), "{error}");
            forwarder
        },
        |_| panic!("ports of a stopped pod are forwarded"),
    );
    drop(forwarder);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_command_along() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let pid = node.shim_pid().unwrap();
    cri.exec(&id, &["true"], 10).await.unwrap();
    let before = handles(pid);
    for transport in BOTH {
        for requested in [ALL, TTY] {
            // The command ignores the end of its input and the signals TERM and HUP.
            let script = "trap '' TERM HUP; echo run''ning; while :; do sleep 1; done";
            let mut command = sh(&mut cri, &id, script, requested, transport).await;
            read_until(&mut command, "running").await;
            assert_eq!(exec_ids(&node, &id).await, 1);
            drop(command);
            node.await_until("the command has ended", SOON, async |node| {
                Ok(exec_ids(node, &id).await == 0)
            })
            .await
            .unwrap();
        }
    }
    let left = cri.exec(&id, &["ps"], 10).await.unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    assert!(!left.contains("running"), "{left}");
    await_handles(&node, before).await;
}

#[tokio::test]
async fn exec_sync_ends_with_its_command_and_is_cut_off_in_time() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    // A child that keeps the output open does not delay the end of the command.
    let answer = cri
        .exec(&id, &["sh", "-c", "sleep 500 & echo done"], 30)
        .await
        .unwrap();
    assert_eq!(
        (answer.stdout.as_slice(), answer.exit_code),
        (&b"done\n"[..], 0)
    );
    let late = cri.exec(&id, &["sleep", "300"], 1).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    node.await_until("the command is killed", SOON, async |node| {
        let listed = Cri::of(node).await?.exec(&id, &["ps"], 10).await?;
        Ok(!String::from_utf8_lossy(&listed.stdout).contains("sleep 300"))
    })
    .await
    .unwrap();
    let flood = ["sh", "-c", "yes | head -c 40000000 2>/dev/null || yes"];
    let answer = cri.exec(&id, &flood, 2).await;
    assert!(answer.is_err() || answer.unwrap().stdout.len() <= 16 << 20);
}
