//! Container logs: the CRI format, and each line exactly once despite restarts and rotations.

mod engine_files;
mod log_drivers;

use std::{ffi::CStr, fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use cri_proto::runtime::v1::{self as cri, ContainerState};
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};
use rustix::{
    fs::statvfs,
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
};
use tokio::{
    net::{TcpListener, UnixStream},
    sync::watch,
};
use tonic::Code;

use engine_files::{bounds, first_kept, written};

/// The time for a container of these tests to end.
const END: Duration = Duration::from_secs(120);
/// The time for the shim to reconnect.
const SOON: Duration = Duration::from_secs(60);

/// A container with its log at `<node>/logs/<name>/0.log`.
struct Logging {
    id: String,
    log: PathBuf,
}

impl Logging {
    async fn start(node: &Node, cri: &mut Cri, name: &str, script: &str) -> Self {
        let mut pod = sandbox(name);
        pod.log_directory = node.path("logs").join(name).display().to_string();
        let mut config = container("main", &["sh", "-c", script]);
        config.log_path = "main/0.log".to_owned();
        let sandbox_id = cri.run(&pod).await.unwrap();
        let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
        cri.start(&id).await.unwrap();
        let log = PathBuf::from(&pod.log_directory).join("main/0.log");
        Self { id, log }
    }

    /// Waits until the container's state is exited.
    async fn ended(&self, node: &Node) {
        node.await_until("the container has ended", END, async |node| {
            // The shim may be down, or not in sync yet.
            let Ok(mut cri) = Cri::of(node).await else {
                return Ok(false);
            };
            let status = cri.status(&self.id).await;
            Ok(status.is_ok_and(|s| s.state() == ContainerState::ContainerExited))
        })
        .await
        .unwrap();
    }

    fn lines(&self) -> Vec<String> {
        lines(&fs::read_to_string(&self.log).unwrap())
    }
}

/// The contents of complete lines.
fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let parts: Vec<_> = line.splitn(4, ' ').collect();
            assert!(parts.len() == 4 && parts[2] == "F", "{line:?}");
            parts[3].to_owned()
        })
        .collect()
}

fn numbers(count: usize) -> Vec<String> {
    (1..=count).map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn a_log_has_time_stream_and_tag_and_is_whole_when_its_container_has_ended() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "echo out; echo err >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; printf end";
    let logging = Logging::start(&node, &mut cri, "plain", script).await;
    logging.ended(&node).await;

    let text = fs::read_to_string(&logging.log).unwrap();
    let mut whole = [String::new(), String::new()];
    let mut partial = 0;
    for line in text.lines() {
        let [time, stream, tag, content] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        assert!(time.contains('T') && time.ends_with('Z'), "{line}");
        let stream = match stream {
            "stdout" => &mut whole[0],
            "stderr" => &mut whole[1],
            other => panic!("{other}"),
        };
        stream.push_str(content);
        match tag {
            "F" => stream.push('\n'),
            "P" => partial += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(whole[0], format!("out\n{}\nend", "x".repeat(20_000)));
    assert_eq!(whole[1], "err\n");
    // The first piece of the long line, and the output without a final line feed.
    assert_eq!(partial, 2);
    // Logs must not be readable by everyone on the node.
    let mode = fs::metadata(&logging.log).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[tokio::test]
async fn no_line_is_lost_or_doubled_when_the_shim_is_killed() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; \
                  [ $((i % 200)) -eq 0 ] && usleep 20000; done; true";
    let logging = Logging::start(&node, &mut cri, "killed", script).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        node.kill_shim().unwrap();
        node.start_shim().await.unwrap();
    }
    logging.ended(&node).await;
    assert_eq!(logging.lines(), numbers(20_000));
}

#[tokio::test]
async fn a_container_that_ends_while_the_shim_is_away_has_its_whole_log() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "seq 1 100; sleep 1; seq 101 5000";
    let logging = Logging::start(&node, &mut cri, "away", script).await;
    node.kill_shim().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.start_shim().await.unwrap();
    logging.ended(&node).await;
    assert_eq!(logging.lines(), numbers(5000));

    // Only the log remains, which the kubelet removes.
    let mut cri = Cri::of(&node).await.unwrap();
    cri.remove(&logging.id).await.unwrap();
    node.await_until("nothing else is left", END, async |node| {
        Ok(fs::read_dir(node.path("shim/logs"))?.next().is_none())
    })
    .await
    .unwrap();
    assert!(logging.log.exists());
}

#[tokio::test]
async fn a_log_that_cannot_be_written_goes_on_when_it_can() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    // A file in the place of the log's directory.
    fs::create_dir_all(node.path("logs/blocked")).unwrap();
    fs::write(node.path("logs/blocked/main"), "").unwrap();
    let script = "seq 1 1000; sleep 1000";
    let logging = Logging::start(&node, &mut cri, "blocked", script).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fs::remove_file(node.path("logs/blocked/main")).unwrap();
    node.await_until("the log is written", END, async |_| {
        // The last line may not be complete yet.
        let text = fs::read_to_string(&logging.log).unwrap_or_default();
        Ok(text.matches('\n').count() == 1000)
    })
    .await
    .unwrap();
    assert_eq!(logging.lines(), numbers(1000));
}

/// The engine's socket behind a TCP port, as if on another machine. A message to the channel breaks
/// all connections.
async fn remote(node: &Node) -> (String, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let socket = node.path("engine/docker.sock");
    let (breaks, broken) = watch::channel(());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (socket, mut broken) = (socket.clone(), broken.clone());
            tokio::spawn(async move {
                broken.mark_unchanged();
                let mut engine = UnixStream::connect(socket).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut engine) => {}
                    _ = broken.changed() => {}
                }
            });
        }
    });
    (endpoint, breaks)
}

#[tokio::test]
async fn a_log_of_an_engine_whose_files_cannot_be_seen_has_each_line_once() {
    let mut node = Node::with_shim().await.unwrap();
    let (endpoint, breaks) = remote(&node).await;
    node.stop_shim().await.unwrap();
    node.start_shim_apart(&endpoint, &[]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; \
                  [ $((i % 200)) -eq 0 ] && usleep 30000; done; true";
    let logging = Logging::start(&node, &mut cri, "apart", script).await;
    let to = logging.log.with_extension("log.1");
    for n in 0..6 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        match n {
            // The kubelet does this when the log is large.
            2 => {
                fs::rename(&logging.log, &to).unwrap();
                let cri = Cri::of(&node).await.unwrap();
                // It retries until the shim has reconnected.
                node.await_until("the log is reopened", SOON, async |_| {
                    let container_id = logging.id.clone();
                    let request = cri::ReopenContainerLogRequest { container_id };
                    let reopened = cri.runtime.clone().reopen_container_log(request).await;
                    match reopened {
                        Ok(_) => Ok(true),
                        Err(status) if status.code() == Code::Unavailable => Ok(false),
                        Err(status) => Err(status.into()),
                    }
                })
                .await
                .unwrap();
            }
            1 | 4 => breaks.send_replace(()),
            _ => {
                node.kill_shim().unwrap();
                node.start_shim_apart(&endpoint, &[]).await.unwrap();
            }
        }
    }
    logging.ended(&node).await;
    let mut text = fs::read_to_string(&to).unwrap();
    text.push_str(&fs::read_to_string(&logging.log).unwrap());
    assert_eq!(lines(&text), numbers(20_000), "{}", node.shim_log());

    // A container that ends while the shim is down, and whose output has only partial lines.
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "echo err >&2; sleep 1; head -c 20000 /dev/zero | tr '\\0' x; printf end";
    let logging = Logging::start(&node, &mut cri, "pieces", script).await;
    node.kill_shim().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.start_shim_apart(&endpoint, &[]).await.unwrap();
    logging.ended(&node).await;
    let text = fs::read_to_string(&logging.log).unwrap();
    let parts = |line: &str| -> Vec<String> { line.splitn(4, ' ').map(str::to_owned).collect() };
    let found: Vec<_> = text.lines().map(parts).collect();
    let heads: Vec<_> = found.iter().map(|line| line[1..3].join(" ")).collect();
    assert_eq!(heads, ["stderr F", "stdout P", "stdout P"], "{text}");
    assert_eq!(found[1][3].len() + found[2][3].len(), 20_003);
}

/// A tmpfs at the directory of the logs of a pod `small`, until it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(node: &Node, options: &CStr) -> Self {
        let path = node.path("logs/small");
        fs::create_dir_all(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(path)
    }

    fn resize(&self, options: &CStr) {
        mount_remount(&self.0, MountFlags::empty(), options).unwrap();
    }

    async fn filled(&self, node: &Node) {
        let is_full = async |_: &Node| Ok(statvfs(&self.0)?.f_bavail == 0);
        let full = node.await_until("the disk is full", END, is_full);
        full.await.unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The shim may still have the log open.
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// The parts of a long line have the same timestamp.
#[tokio::test]
async fn a_log_whose_disk_is_full_for_a_while_has_each_part_once() {
    const LENGTH: usize = 200_000;
    let mut node = Node::with_shim().await.unwrap();
    let (endpoint, _breaks) = remote(&node).await;
    node.stop_shim().await.unwrap();
    let disk = SmallDisk::new(&node, c"size=100k");
    node.start_shim_apart(&endpoint, &[]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' x; echo; sleep 1000");
    let logging = Logging::start(&node, &mut cri, "small", &script).await;
    disk.filled(&node).await;
    disk.resize(c"size=1m");
    node.await_until("the log is whole", END, async |_| {
        Ok(fs::read_to_string(&logging.log)?.contains(" F "))
    })
    .await
    .unwrap();
    let text = fs::read_to_string(&logging.log).unwrap();
    let parts = text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap());
    assert_eq!(
        parts.map(str::len).sum::<usize>(),
        LENGTH,
        "{}",
        node.shim_log()
    );
}

/// The engine has removed the beginning twice when there is room: what it still has is whole.
#[tokio::test]
async fn a_log_whose_disk_is_full_longer_than_the_engine_keeps_it_goes_on_with_what_is_left() {
    const HALF: usize = 60_000;
    const LINES: usize = 2 * HALF;
    let mut node = Node::with_shim().await.unwrap();
    let (endpoint, _breaks) = remote(&node).await;
    node.stop_shim().await.unwrap();
    let disk = SmallDisk::new(&node, c"size=4k");
    let bounds = bounds("1m", 2);
    let bounds: Vec<_> = bounds.iter().map(String::as_str).collect();
    node.start_shim_apart(&endpoint, &bounds).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    // There is no room for the first line.
    let script = format!(
        "head -c 10000 /dev/zero | tr '\\0' x; echo; \
         for half in 0 1; do \
             while [ ! -e /tmp/$half ]; do usleep 1000; done; \
             seq $((half * {HALF} + 1)) $(((half + 1) * {HALF})); \
         done; sleep 1000"
    );
    let logging = Logging::start(&node, &mut cri, "small", &script).await;
    disk.filled(&node).await;
    for half in [0, 1] {
        let path = format!("/tmp/{half}");
        let go = cri.exec(&logging.id, &["touch", &path], 10).await.unwrap();
        assert_eq!(go.exit_code, 0);
        let last = format!("\"{}\\n\"", (half + 1) * HALF);
        written(&node, &logging.id, &last).await;
        if half == 0 {
            // The incomplete first line makes room for some of what the engine has now.
            node.await_until("the first line is gone", END, async |_| {
                let log = fs::read_to_string(&logging.log)?;
                Ok(!log.is_empty() && !log.contains('x'))
            })
            .await
            .unwrap();
        }
    }
    // A response that began before the last line may still have what the engine removed since; it
    // ends when the shim cannot write its beginning.
    tokio::time::sleep(Duration::from_secs(3)).await;
    disk.resize(c"size=16m");
    node.await_until("the last line is there", END, async |_| {
        Ok(fs::read_to_string(&logging.log)?.ends_with(&format!(" {LINES}\n")))
    })
    .await
    .unwrap();
    // No line is damaged or doubled.
    let found = logging.lines();
    let found: Vec<usize> = found.iter().map(|line| line.parse().unwrap()).collect();
    let starts = found.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    let starts: Vec<usize> = starts.map(|pair| pair[1]).collect();
    let [second] = starts[..] else {
        panic!(
            "the runs after the first start at {starts:?}: {}",
            node.shim_log()
        );
    };
    assert!(found[0] > 1 && found[0] < HALF, "starts at {}", found[0]);
    assert_eq!(
        second,
        first_kept(&node, &logging.id),
        "{}",
        node.shim_log()
    );
}

#[tokio::test]
async fn a_terminals_log_of_an_engine_whose_files_cannot_be_seen_is_whole() {
    let mut node = Node::with_shim().await.unwrap();
    let (endpoint, _breaks) = remote(&node).await;
    node.stop_shim().await.unwrap();
    node.start_shim_apart(&endpoint, &[]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let mut pod = sandbox("terminal");
    pod.log_directory = node.path("logs/terminal").display().to_string();
    // A line longer than a piece, one with a time and a zero byte in it, and an end without a line
    // feed.
    let script = "head -c 20000 /dev/zero | tr '\\0' x; echo; \
                  printf '2026-01-02T03:04:05.000000006Z \\0\\n'; printf end";
    let mut config = container("main", &["sh", "-c", script]);
    config.log_path = "main/0.log".to_owned();
    config.tty = true;
    let sandbox_id = cri.run(&pod).await.unwrap();
    let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
    cri.start(&id).await.unwrap();
    let log = node.path("logs/terminal/main/0.log");
    Logging {
        id,
        log: log.clone(),
    }
    .ended(&node)
    .await;
    let text = fs::read_to_string(log).unwrap();
    let mut whole = String::new();
    for line in text.split_terminator('\n') {
        let parts: Vec<_> = line.splitn(4, ' ').collect();
        assert_eq!(parts[1], "stdout", "{line}");
        whole.push_str(parts[3]);
        if parts[2] == "F" {
            whole.push('\n');
        }
    }
    let long = "x".repeat(20_000);
    let rest = whole.strip_prefix(&long).unwrap();
    assert_eq!(rest, "\r\n2026-01-02T03:04:05.000000006Z \0\r\nend");
}

#[tokio::test]
async fn a_log_in_the_engines_format_is_a_link() {
    let node = Node::with_shim_and(&["--log-format", "json-file"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "echo hello; sleep 1000";
    let logging = Logging::start(&node, &mut cri, "link", script).await;
    assert!(fs::symlink_metadata(&logging.log).unwrap().is_symlink());
    node.await_until("the line is there", END, async |_| {
        Ok(fs::read_to_string(&logging.log)?.starts_with("{\"log\":\"hello"))
    })
    .await
    .unwrap();
    let container_id = logging.id.clone();
    let request = cri::ReopenContainerLogRequest { container_id };
    let error = cri.runtime.reopen_container_log(request).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("--log-format"), "{error:?}");
    cri.remove(&logging.id).await.unwrap();
    assert!(fs::symlink_metadata(&logging.log).is_err());
}
