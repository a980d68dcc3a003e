//! The engine's own log files, which the shim bounds: their size, and the loss of output beyond it.

use std::{fs, time::Duration};

use bollard::query_parameters::LogsOptionsBuilder;
use cri_proto::runtime::v1 as cri;
use e2e::{cri::Cri, node::Node};
use futures::TryStreamExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Code;

use super::{END, Logging, lines, numbers};

/// A node whose engine keeps `max_file` files of `max_size` for a container's log.
async fn keeping(max_size: &str, max_file: u32) -> Node {
    let flags = bounds(max_size, max_file);
    Node::with_shim_and(&flags.each_ref().map(String::as_str))
        .await
        .unwrap()
}

pub(super) fn bounds(max_size: &str, max_file: u32) -> [String; 2] {
    [
        format!("--engine-log-max-size={max_size}"),
        format!("--engine-log-max-file={max_file}"),
    ]
}

/// The names of the engine's log files of a container.
fn engine_files(node: &Node, id: &str) -> Vec<String> {
    let dir = node.path("engine/data/containers").join(id);
    let names = fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.contains("-json.log"))
        .collect();
    names.sort();
    names
}

/// Waits until the newest of the engine's log files of a container contains `text`.
pub(super) async fn written(node: &Node, id: &str, text: &str) {
    let log = node.path("engine/data/containers").join(id);
    let log = log.join(format!("{id}-json.log"));
    node.await_until("all is written", END, async |_| {
        // The file is missing for a moment during rotation.
        Ok(fs::read_to_string(&log).is_ok_and(|log| log.contains(text)))
    })
    .await
    .unwrap();
}

/// The number in the first line that the engine still has of the container.
pub(super) fn first_kept(node: &Node, id: &str) -> usize {
    let log = node.path("engine/data/containers").join(id);
    let rotated = fs::read_to_string(log.join(format!("{id}-json.log.1"))).unwrap();
    let line: serde_json::Value = serde_json::from_str(rotated.lines().next().unwrap()).unwrap();
    line["log"].as_str().unwrap().trim_end().parse().unwrap()
}

/// The response of the shim's metrics server at `address`.
async fn metrics(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: shim\r\nConnection: close\r\n\r\n")
        .await?;
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).await?;
    Ok(metrics)
}

#[tokio::test]
async fn what_the_engine_keeps_is_whole_after_an_absence_and_goes_when_it_was_taken() {
    let mut node = keeping("1m", 50).await;
    let mut cri = Cri::of(&node).await.unwrap();
    // A line takes about 80 bytes in the engine's log, so almost all files are full.
    const LINES: usize = 550_000;
    let script = format!("echo 0; sleep 2; seq 1 {LINES}; sleep 1000");
    let logging = Logging::start(&node, &mut cri, "kept", &script).await;
    node.await_until("the first line is there", END, async |_| {
        Ok(fs::metadata(&logging.log)?.len() > 0)
    })
    .await
    .unwrap();
    node.kill_shim().unwrap();
    written(&node, &logging.id, &format!("{LINES}\\n")).await;
    let kept = engine_files(&node, &logging.id).len();
    assert!((40..50).contains(&kept), "{kept} files, of 50");
    let flags = bounds("1m", 50);
    node.start_shim_with(&flags.each_ref().map(String::as_str))
        .await
        .unwrap();
    node.await_until("the log is whole", END, async |_| {
        Ok(fs::read_to_string(&logging.log)?.ends_with(&format!(" {LINES}\n")))
    })
    .await
    .unwrap();
    let found = logging.lines();
    assert_eq!(found.len(), LINES + 1);
    assert_eq!(found[1..], numbers(LINES));

    // The consumed output is on disk, so the engine keeps few files.
    node.await_until("the engine's files are gone", END, async |node| {
        Ok(engine_files(node, &logging.id).len() == 3)
    })
    .await
    .unwrap();
    let options = LogsOptionsBuilder::default().stdout(true).build();
    let of_the_engine: Vec<_> = node
        .docker()
        .unwrap()
        .logs(&logging.id, Some(options))
        .try_collect()
        .await
        .unwrap();
    let newest = of_the_engine.last().unwrap().to_string();
    assert_eq!(newest.trim_end(), LINES.to_string());
    assert!(of_the_engine.len() > 1000, "{}", of_the_engine.len());
}

#[tokio::test]
async fn output_that_the_engine_removed_first_is_counted_and_told_once() {
    let mut node = keeping("1m", 2).await;
    let mut cri = Cri::of(&node).await.unwrap();
    // The output takes 8 MB in the engine's log; the engine keeps the last two.
    let script = "echo 0; sleep 2; seq 1 100000; sleep 1000";
    let logging = Logging::start(&node, &mut cri, "counted", script).await;
    node.await_until("the first line is there", END, async |_| {
        Ok(fs::metadata(&logging.log)?.len() > 0)
    })
    .await
    .unwrap();
    node.kill_shim().unwrap();
    written(&node, &logging.id, "100000\\n").await;
    let mut flags = bounds("1m", 2).to_vec();
    flags.push("--metrics-bind-addr=localhost:0".to_owned());
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    node.start_shim_with(&flags).await.unwrap();
    node.await_until("the last line is there", END, async |_| {
        Ok(fs::read_to_string(&logging.log)?.ends_with(" 100000\n"))
    })
    .await
    .unwrap();
    let found = logging.lines();
    assert!(found.len() < 100_000, "{} lines", found.len());

    let log = node.shim_log();
    let line = log.lines().rfind(|line| line.contains("/healthz")).unwrap();
    let (_, address) = line.split_once("http://").unwrap();
    let address = address.split_whitespace().next().unwrap();
    // The counter is increased after the lines are written.
    let counted = "\ndockershim_log_losses_total{reason=\"rotated\"} 1\n";
    node.await_until("the loss is counted", END, async |_| {
        Ok(metrics(address).await?.contains(counted))
    })
    .await
    .unwrap();
    let told = log.lines().filter(|line| line.contains("lost output"));
    assert_eq!(told.count(), 1, "{log}");
}

#[tokio::test]
async fn the_engines_rotation_and_the_kubelets_lose_nothing() {
    let node = keeping("10m", 3).await;
    let mut cri = Cri::of(&node).await.unwrap();
    // A line takes about 100 bytes in the engine's log, and the engine keeps 30 MB.
    const LINES: usize = 400_000;
    let script = format!("seq 1 {LINES}");
    let logging = Logging::start(&node, &mut cri, "rotated", &script).await;
    let mut rotated = String::new();
    for n in 0..5 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let to = logging.log.with_extension(format!("log.{n}"));
        fs::rename(&logging.log, &to).unwrap();
        let container_id = logging.id.clone();
        let request = cri::ReopenContainerLogRequest { container_id };
        match cri.runtime.reopen_container_log(request).await {
            Ok(_) => rotated.push_str(&fs::read_to_string(&to).unwrap()),
            // The container has ended, so the last file stays in place.
            Err(error) => {
                assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
                fs::rename(&to, &logging.log).unwrap();
                break;
            }
        }
    }
    logging.ended(&node).await;
    rotated.push_str(&fs::read_to_string(&logging.log).unwrap());
    let found = lines(&rotated);
    assert_eq!(found.len(), LINES);
    assert_eq!(found, numbers(LINES));
}
