//! The kubelet's limit of open files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path, time::Duration};

use test_run::{mounts::MountDir, process::Process};
use tokio::time::{sleep, timeout};

/// Starts a kubelet on its own directory, with a soft limit of 1024 open files and a hard limit of
/// 8192 that it cannot raise.
fn start(dir: &Path, field: &str) -> Process {
    let config = dir.join("kubelet.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         containerRuntimeEndpoint: unix:///nonexistent.sock\nenableServer: false\n\
         healthzPort: 0\n{field}\n"
    );
    fs::write(&config, text).unwrap();
    let args = [
        "--nofile=1024:8192",
        "--",
        "setpriv",
        "--bounding-set=-sys_resource",
        "--",
        env!("CARGO_BIN_EXE_kubelet"),
        &format!("--config={}", config.display()),
        &format!("--root-dir={}", dir.join("root").display()),
        "--hostname-override=node-1",
        "--set-kernel-tunables=false",
        // The runtime starts no processes.
        "--cgroups-per-qos=false",
        "--enforce-node-allocatable=none",
    ];
    let log = dir.join("kubelet.log");
    Process::start("kubelet", None, Path::new("prlimit"), &args, &log).unwrap()
}

/// The soft and hard limits of open files of a process.
fn limits(process: &Process) -> Vec<String> {
    let path = format!("/proc/{}/limits", process.pid());
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let words = line.unwrap().split_whitespace().take(2);
    words.map(str::to_owned).collect()
}

async fn until(process: &Process, expected: &str) {
    let waited = timeout(Duration::from_secs(60), async {
        while limits(process) != [expected, expected] {
            sleep(Duration::from_millis(20)).await;
        }
    });
    if waited.await.is_err() {
        panic!(
            "{:?}, not {expected}: {}",
            limits(process),
            process.output()
        );
    }
}

#[tokio::test]
async fn as_many_files_may_be_open_as_are_configured_or_allowed() {
    for (field, expected, warnings) in [
        ("maxOpenFiles: 2000", "2000", 0),
        ("maxOpenFiles: 8192", "8192", 0),
        ("maxOpenFiles: 8193", "8192", 1),
        ("", "8192", 1),
    ] {
        let dir = MountDir::new().unwrap();
        let kubelet = start(dir.path(), field);
        until(&kubelet, expected).await;
        let is_started = async {
            while !kubelet.output().contains("starting") {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), is_started).await.unwrap();
        let output = kubelet.output();
        assert_eq!(
            output.matches("maxOpenFiles (").count(),
            warnings,
            "{field}: {output}"
        );
        assert!(!output.contains("without effect"), "{output}");
    }
}

#[test]
fn the_units_allow_for_what_is_configured() {
    for unit in ["dockershim", "kubelet"] {
        let path = format!(
            "{}/../deploy/systemd/{unit}.service",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let limit = lines.find_map(|line| line.strip_prefix("LimitNOFILE="));
        assert!(
            limit.unwrap().parse::<u64>().unwrap() >= 1_000_000,
            "{unit}"
        );
    }
}
