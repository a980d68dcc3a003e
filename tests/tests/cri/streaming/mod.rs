//! Exec, attach and port-forward through the shim on a real engine.

mod attach;
mod commands;
mod ports;
mod sessions;
mod tls;

use std::{fs, time::Duration};

use cri_streaming::{
    RequestedStreams,
    client::{Command, Forwarded, Transport},
};
use e2e::{cri::CommandResult, node::Node};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const BOTH: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];
const SOON: Duration = Duration::from_secs(60);
const OUTPUTS: RequestedStreams = RequestedStreams {
    stdin: false,
    stdout: true,
    stderr: true,
    tty: false,
};
const ALL: RequestedStreams = RequestedStreams {
    stdin: true,
    ..OUTPUTS
};
const TTY: RequestedStreams = RequestedStreams {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: true,
};

/// The complete output of a command, and its exit code, if any.
async fn finish(command: Command) -> (String, String, Option<i32>) {
    let ended = CommandResult::of(command).await.unwrap();
    (ended.out, ended.err, ended.code)
}

/// Reads until `wanted` occurs in the output.
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

/// The numbers of a process's descriptors and threads.
fn handles(pid: u32) -> (usize, usize) {
    let count = |what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("fd"), count("task"))
}

/// Waits until the shim has at most as many descriptors and threads as `before`.
async fn await_handles(node: &Node, before: (usize, usize)) {
    let pid = node.shim_pid().unwrap();
    node.await_until("descriptors and threads are as before", SOON, async |_| {
        let now = handles(pid);
        Ok(now.0 <= before.0 && now.1 <= before.1)
    })
    .await
    .unwrap();
}

/// Sends data and closes the input; returns the response and the error.
async fn exchange(connection: Forwarded, data: &[u8]) -> (Vec<u8>, String) {
    let Forwarded {
        mut reader,
        mut writer,
        mut error,
    } = connection;
    // If no server listens, the connection may end before anything is sent.
    let _ = writer.write_all(data).await;
    let _ = writer.shutdown().await;
    let (mut back, mut text) = (Vec::new(), Vec::new());
    let _ = reader.read_to_end(&mut back).await;
    let _ = error.read_to_end(&mut text).await;
    (back, String::from_utf8(text).unwrap())
}
