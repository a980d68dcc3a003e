//! Exec, attach and port-forward through the shim on a real engine.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod tls;

use std::{fs, time::Duration};

use bollard::query_parameters::InspectContainerOptions;
use cri_proto::runtime::v1::ContainerState;
use cri_streaming::{
    TerminalSize, Wants,
    client::{Client, ClientError, Command, Forwarded, Transport},
};
use e2e::{
    asked,
    cri::{Cri, Ended, container, host_container, host_sandbox, sandbox},
    node::Node,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

const BOTH: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];
const SOON: Duration = Duration::from_secs(20);
const OUTPUTS: Wants = Wants {
    stdin: false,
    stdout: true,
    stderr: true,
    tty: false,
};
const ALL: Wants = Wants {
    stdin: true,
    ..OUTPUTS
};
const TTY: Wants = Wants {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: true,
};

/// Runs a shell script.
async fn sh(cri: &mut Cri, id: &str, script: &str, wants: Wants, over: Transport) -> Command {
    let command = ["sh", "-c", script];
    cri.exec_streams(id, &command, wants, over).await.unwrap()
}

/// Everything that a command says, and its exit code, if it has one.
async fn finish(command: Command) -> (String, String, Option<i32>) {
    let ended = Ended::of(command).await.unwrap();
    (ended.out, ended.err, ended.code)
}

/// Reads until `wanted` has come.
async fn read_until(command: &mut Command, wanted: &str) -> String {
    let mut text = String::new();
    let stdout = command.stdout.as_mut().unwrap();
    let reading = async {
        while !text.contains(wanted) {
            let mut bytes = [0; 1024];
            let length = stdout.read(&mut bytes).await.unwrap();
            assert!(length > 0, "the end, before {wanted:?}");
            text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    };
    if tokio::time::timeout(SOON, reading).await.is_err() {
        panic!("{wanted:?} did not come, but {text:?}");
    }
    text
}

async fn say(command: &mut Command, text: &str) {
    let stdin = command.stdin.as_mut().unwrap();
    stdin.write_all(text.as_bytes()).await.unwrap();
    stdin.flush().await.unwrap();
}

/// How many descriptors and threads a process has.
fn handles(pid: u32) -> (usize, usize) {
    let count = |what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("fd"), count("task"))
}

/// Waits until the shim has no more descriptors and threads than `before`.
async fn await_handles(node: &Node, before: (usize, usize)) {
    let pid = node.shim_pid().unwrap();
    node.await_until("descriptors and threads are as before", SOON, async |_| {
        let now = handles(pid);
        Ok(now.0 <= before.0 && now.1 <= before.1)
    })
    .await
    .unwrap();
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

/// Bytes that do not repeat, in blocks of odd sizes.
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
        // A resize goes its own way beside input.
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

        // ctrl-C ends the program in front, not the shell. It says itself that it is there.
        say(
            &mut command,
            "sh -c 'echo wait\"\"ing; exec sleep 1000'; echo now $?\n",
        )
        .await;
        read_until(&mut command, "waiting").await;
        say(&mut command, "\x03").await;
        say(&mut command, "echo still he''re\n").await;
        read_until(&mut command, "still here").await;
        // ctrl-P is the program's, and not the beginning of the engine's own keys.
        say(&mut command, "stty -icanon -echo; echo r''eady; head=$(sh -c 'read -n 1 x; printf %s \"$x\" | wc -c'); echo got$head\n").await;
        read_until(&mut command, "ready").await;
        say(&mut command, "\x10").await;
        read_until(&mut command, "got1").await;
        // ctrl-D ends the shell, with what it had last.
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
    for (wants, reason) in [
        (
            Wants::default(),
            "one of stdin, stdout, or stderr must be set",
        ),
        (
            Wants {
                stderr: true,
                ..TTY
            },
            "tty and stderr cannot both be true",
        ),
    ] {
        let refused = cri.exec_url(&id, &["true"], wants).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(reason), "{refused}");
    }

    // What was prepared before tells it over the error stream.
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
    // And a token works once.
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
        for wants in [ALL, TTY] {
            // It ignores the end of its input and what it is asked politely.
            let script = "trap '' TERM HUP; echo run''ning; while :; do sleep 1; done";
            let mut command = sh(&mut cri, &id, script, wants, transport).await;
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
async fn attach_joins_the_container_and_leaves_it_running() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = cri.run(&sandbox("p")).await.unwrap();
    let script = "while read line; do [ $line = end ] && exit 3; echo \"got $line\"; done";
    for (number, transport) in BOTH.into_iter().enumerate() {
        for tty in [false, true] {
            let mut config = container(&format!("c{number}-{tty}"), &["sh", "-c", script]);
            (config.stdin, config.tty) = (true, tty);
            let id = cri.create(&pod, config, &sandbox("p")).await.unwrap();
            cri.start(&id).await.unwrap();
            let wants = if tty { TTY } else { ALL };

            let mut first = cri.attach_streams(&id, wants, transport).await.unwrap();
            say(&mut first, "one\n").await;
            read_until(&mut first, "got one").await;
            drop(first);

            let mut second = cri.attach_streams(&id, wants, transport).await.unwrap();
            say(&mut second, "two\n").await;
            let text = read_until(&mut second, "got two").await;
            assert!(!text.contains("one"), "{text:?}");
            say(&mut second, "end\n").await;
            assert!(second.status.wait().await.unwrap().is_success());
            node.await_until("exited", SOON, async |node| {
                let status = Cri::of(node).await?.status(&id).await?;
                Ok(status.state() == ContainerState::ContainerExited && status.exit_code == 3)
            })
            .await
            .unwrap();
        }
    }
}

/// Sends, ends, and reads both what comes back and the error.
async fn exchange(connection: Forwarded, data: &[u8]) -> (Vec<u8>, String) {
    let Forwarded {
        mut reader,
        mut writer,
        mut error,
    } = connection;
    // Where nobody listens it may be over before anything is sent.
    let _ = writer.write_all(data).await;
    let _ = writer.shutdown().await;
    let (mut back, mut text) = (Vec::new(), Vec::new());
    let _ = reader.read_to_end(&mut back).await;
    let _ = error.read_to_end(&mut text).await;
    (back, String::from_utf8(text).unwrap())
}

const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

#[tokio::test]
async fn ports_of_a_pod_s_loopback_are_forwarded() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let serve = |address: &str| format!("exec httpd -f -p {address} -h /www");
    let v4 = serve("127.0.0.1:8080");
    let (pod, _) = cri.run_pod("p", &["sh", "-c", &v4]).await.unwrap();
    // The engine gives its bridge's sandboxes no IPv6, but the node's network has it.
    let host = host_sandbox("host");
    let host_pod = cri.run(&host).await.unwrap();
    let v6 = serve("[::1]:8081");
    let config = host_container("main", &["sh", "-c", &v6]);
    let id = cri.create(&host_pod, config, &host).await.unwrap();
    cri.start(&id).await.unwrap();

    let pid = node.shim_pid().unwrap();
    let before = handles(pid);
    for transport in BOTH {
        for (pod, port) in [(&pod, 8080), (&host_pod, 8081)] {
            let forwarder = cri.port_forward(pod, transport).await.unwrap();
            node.await_until("the page comes", SOON, async |_| {
                let (back, _) = exchange(forwarder.connect(port).await?, GET).await;
                Ok(back.ends_with(b"hello from the pod\n"))
            })
            .await
            .unwrap();
            // Several at once over one connection; busybox has a short queue.
            let exchanges = (0..8).map(async |_| {
                let (back, error) = exchange(forwarder.connect(port).await.unwrap(), GET).await;
                assert!(back.ends_with(b"hello from the pod\n"));
                assert_eq!(error, "");
            });
            futures::future::join_all(exchanges).await;

            let (back, error) = exchange(forwarder.connect(9).await.unwrap(), GET).await;
            assert_eq!(back, b"");
            assert!(
                error.starts_with(&format!("error forwarding port 9 to pod {pod}, uid : failed to connect to localhost:9 inside namespace")),
                "{error}"
            );
        }
    }
    await_handles(&node, before).await;
}

/// `SESSIONS=10000` makes it the long run; as it is, it says the same sooner.
#[tokio::test]
async fn sessions_in_a_row_and_at_once_leave_nothing_behind() {
    let sessions = usize::try_from(asked::amount("SESSIONS", 60)).unwrap();
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "while :; do echo hello | nc -l -p 7000 -s 127.0.0.1; done";
    let (pod, id) = cri.run_pod("p", &["sh", "-c", script]).await.unwrap();
    let pid = node.shim_pid().unwrap();
    let mut once = async |number: usize| {
        let transport = BOTH[number % 2];
        match number % 3 {
            0 => {
                let forwarder = cri.port_forward(&pod, transport).await.unwrap();
                exchange(forwarder.connect(7000).await.unwrap(), b"").await;
            }
            _ => {
                let command = cri.exec_streams(&id, &["true"], OUTPUTS, transport);
                let (_, _, code) = finish(command.await.unwrap()).await;
                assert_eq!(code, Some(0));
            }
        }
    };
    for number in 0..12 {
        once(number).await;
    }
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.to_owned()
    };
    let (before, memory_before) = (handles(pid), memory());
    for number in 0..sessions {
        once(number).await;
    }
    await_handles(&node, before).await;
    println!("{sessions} sessions: {} then {}", memory_before, memory());

    let mut commands = Vec::new();
    for number in 0..sessions.min(200) {
        let command = cri.exec_streams(&id, &["cat"], ALL, BOTH[number % 2]);
        commands.push(command.await.unwrap());
    }
    for (number, command) in commands.iter_mut().enumerate() {
        say(command, &format!("line {number}\n")).await;
    }
    for (number, command) in commands.iter_mut().enumerate() {
        read_until(command, &format!("line {number}\n")).await;
        command.stdin.take().unwrap().shutdown().await.unwrap();
    }
    for command in commands {
        assert_eq!(finish(command).await.2, Some(0));
    }
    println!("{} sessions at once: {}", sessions.min(200), memory());
}

#[tokio::test]
async fn an_engine_or_a_shim_that_dies_ends_its_sessions_and_nothing_else() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["cat"], ALL, transport)
            .await
            .unwrap();
        say(&mut command, "a\n").await;
        read_until(&mut command, "a\n").await;
        node.kill_shim().unwrap();
        command.status.wait().await.unwrap_err();
        node.start_shim().await.unwrap();
        cri = Cri::of(&node).await.unwrap();
        let status = cri.status(&id).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerRunning);
    }
    let mut commands = Vec::new();
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["cat"], ALL, transport)
            .await
            .unwrap();
        say(&mut command, "a\n").await;
        read_until(&mut command, "a\n").await;
        commands.push((transport, command));
    }
    // Its containers run on: no command has ended.
    node.engine_mut().kill().unwrap();
    for (transport, command) in commands {
        let ended = tokio::time::timeout(SOON, command.status.wait()).await;
        let status = ended.unwrap().unwrap();
        assert!(!status.is_success(), "{transport:?}: {status:?}");
        assert_eq!(status.exit_code(), None, "{transport:?}: {status:?}");
    }
}

#[tokio::test]
async fn exec_sync_ends_with_its_command_and_is_cut_off_in_time() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    // A child that keeps the output open does not keep the command.
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
