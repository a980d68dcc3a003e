//! Commands in containers that are ended early, or cannot be started.

use std::{fs, time::Duration};

use cri_proto::runtime::v1 as cri;
use cri_streaming::{RequestedStreams, client::Transport};
use e2e::{
    cri::{CommandResult, Cri},
    node::Node,
};
use tonic::{Code, Request};

const BOTH: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];
const SOON: Duration = Duration::from_secs(60);
/// Longer than any step takes that does not hang.
const LIMIT: Duration = Duration::from_secs(120);
/// A command with a child; both run for long and ignore TERM and HUP.
const LONG: &str = "trap '' TERM HUP; echo begun; sleep 1234 & sleep 1234; wait";
const OUTPUTS: RequestedStreams = RequestedStreams {
    stdin: false,
    stdout: true,
    stderr: true,
    tty: false,
};

/// The command lines of a container's processes.
fn runs(id: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_container = processes.filter(|process| {
        let cgroups = fs::read_to_string(process.path().join("cgroup"));
        cgroups.is_ok_and(|cgroups| cgroups.contains(id))
    });
    of_container
        .filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|line| !line.is_empty())
        .collect()
}

async fn await_only_the_container(node: &Node, id: &str, when: &str) {
    let what = format!("{when}: its command has ended");
    let done = node.await_until(&what, SOON, async |_| Ok(runs(id).len() == 1));
    if let Err(error) = done.await {
        panic!("{error:#}: {:?}", runs(id));
    }
}

async fn await_command(node: &Node, id: &str) {
    node.await_until("the command runs", SOON, async |_| {
        let sleeps = |line: &String| line.contains("1234") && !line.contains("begun");
        Ok(runs(id).into_iter().filter(sleeps).count() == 2)
    })
    .await
    .unwrap();
}

fn exec_sync(id: &str, timeout: i64) -> cri::ExecSyncRequest {
    cri::ExecSyncRequest {
        container_id: id.to_owned(),
        cmd: ["sh", "-c", LONG].map(str::to_owned).to_vec(),
        timeout,
    }
}

#[tokio::test]
async fn exec_sync_ends_its_command_when_its_time_is_over_or_its_client_is_gone() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();

    let error = cri.runtime.exec_sync(exec_sync(&id, 1)).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    await_only_the_container(&node, &id, "after its time").await;

    let mut request = Request::new(exec_sync(&id, 0));
    request.set_timeout(Duration::from_secs(1));
    cri.runtime.exec_sync(request).await.unwrap_err();
    await_only_the_container(&node, &id, "after its client's time").await;

    // First the client cancels the call; then it drops the connection.
    let mut other = Cri::of(&node).await.unwrap();
    for drop_connection in [false, true] {
        let mut client = if drop_connection {
            std::mem::replace(&mut other, cri.clone())
        } else {
            other.clone()
        };
        let request = exec_sync(&id, 0);
        let call = tokio::spawn(async move { client.runtime.exec_sync(request).await });
        await_command(&node, &id).await;
        call.abort();
        await_only_the_container(&node, &id, "after a cancelled call").await;
    }

    // Other commands are not affected.
    let answer = cri.exec(&id, &["echo", "alive"], 10).await.unwrap();
    assert_eq!(answer.stdout, b"alive\n");
}

#[tokio::test]
async fn a_command_that_ends_its_container_ends_with_it() {
    let node = Node::with_shim().await.unwrap();
    let cri = Cri::of(&node).await.unwrap();
    let ends = "while [ ! -e /tmp/end ]; do usleep 1000; done";
    let touch = ["touch", "/tmp/end"];
    let commands = (0..8).map(|n| {
        let mut cri = cri.clone();
        async move {
            let pod = format!("p{n}");
            let (_, id) = cri.run_pod(&pod, &["sh", "-c", ends]).await.unwrap();
            // The engine may or may not know the command's exit code.
            if n % 2 == 0 {
                match cri.exec(&id, &touch, 0).await {
                    Ok(answer) => assert!([0, 127, 137].contains(&answer.exit_code), "{answer:?}"),
                    Err(error) => {
                        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
                        assert!(error.message().contains("has exited"), "{error}");
                    }
                }
            } else {
                exec(&mut cri, &id, &touch, OUTPUTS, BOTH[n / 2 % 2]).await;
            }
        }
    });
    let commands = futures::future::join_all(commands);
    tokio::time::timeout(LIMIT, commands).await.unwrap();
}

#[tokio::test]
async fn a_client_of_streams_that_leaves_takes_its_command_and_its_children_along() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    for transport in BOTH {
        let command = ["sh", "-c", LONG];
        let session = cri.exec_streams(&id, &command, OUTPUTS, transport);
        let session = session.await.unwrap();
        await_command(&node, &id).await;
        drop(session);
        await_only_the_container(&node, &id, "after a client left").await;
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why_on_its_error_output() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    for (program, reason) in [
        ("/nosuch", "no such file or directory"),
        ("nosuch", "executable file not found"),
        ("/etc/passwd", "permission denied"),
        ("/etc", "permission denied"),
    ] {
        let answer = cri.exec(&id, &[program], 10).await.unwrap();
        let (out, err) = (text(&answer.stdout), text(&answer.stderr));
        assert!(out.is_empty() && err.contains(reason), "{out}|{err}");
        assert!(matches!(answer.exit_code, 126 | 127), "{answer:?}");

        for transport in BOTH {
            let ended = exec(&mut cri, &id, &[program], OUTPUTS, transport).await;
            assert!(ended.out.is_empty(), "{program}: {ended:?}");
            assert!(ended.err.contains(reason), "{program}: {ended:?}");
            assert!(ended.message.contains(reason), "{program}: {ended:?}");
            assert!(matches!(ended.code, Some(126 | 127)), "{ended:?}");

            // A client without error output gets the reason too.
            let only = RequestedStreams {
                stderr: false,
                ..OUTPUTS
            };
            let ended = exec(&mut cri, &id, &[program], only, transport).await;
            assert!(ended.out.is_empty(), "{program}: {ended:?}");
            assert!(ended.message.contains(reason), "{program}: {ended:?}");

            // With a terminal, the user sees only its output.
            let tty = RequestedStreams { tty: true, ..only };
            let ended = exec(&mut cri, &id, &[program], tty, transport).await;
            assert!(ended.out.contains(reason), "{program}: {ended:?}");
            assert!(matches!(ended.code, Some(126 | 127)), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn what_a_command_says_itself_is_its_output_whatever_it_is() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let words = "OCI runtime exec failed: exec failed: permission denied: unknown\r\n";
    for code in [0, 126, 127] {
        let script = format!("printf '{}'; exit {code}", words.escape_default());
        let command = ["sh", "-c", &script];
        let answer = cri.exec(&id, &command, 10).await.unwrap();
        assert_eq!(text(&answer.stdout), words);
        assert_eq!((answer.stderr.len(), answer.exit_code), (0, code));
        for transport in BOTH {
            let ended = exec(&mut cri, &id, &command, OUTPUTS, transport).await;
            assert_eq!((ended.out.as_str(), ended.err.as_str()), (words, ""));
            assert_eq!(ended.code, Some(code));
        }
    }
}

async fn exec(
    cri: &mut Cri,
    id: &str,
    command: &[&str],
    requested: RequestedStreams,
    over: Transport,
) -> CommandResult {
    let command = cri
        .exec_streams(id, command, requested, over)
        .await
        .unwrap();
    CommandResult::of(command).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
