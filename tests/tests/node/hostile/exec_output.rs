//! Output of probe commands, whose size the container's image controls.

use std::{fs, time::Duration};

use cri_proto::runtime::v1::ExecSyncResponse;
use fake_runtime::Verb;
use tokio::time::{sleep, timeout};

use super::lone_kubelet::LoneKubelet;

const MIB: usize = 1 << 20;
const CONTAINERS: usize = 16;
/// The allowed growth of the kubelet's memory.
const GROWTH: u64 = 24 << 20;

#[tokio::test]
async fn probes_that_print_megabytes_at_once_do_not_fill_the_kubelet() {
    let kubelet = LoneKubelet::start(4096, "").await;
    kubelet.runtime.add_image("example.local/noise:1");
    let container = |n| {
        format!(
            "  - {{name: c{n}, image: example.local/noise:1, imagePullPolicy: Never, readinessProbe: \
             {{exec: {{command: [noise]}}, periodSeconds: 1}}}}\n"
        )
    };
    let containers: String = (0..CONTAINERS).map(container).collect();
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: noisy}}\nspec:\n  containers:\n{containers}"
    );
    let calls = async |more: usize| {
        let wanted = kubelet.runtime.calls(Verb::ExecSync) + more;
        let called = async {
            while kubelet.runtime.calls(Verb::ExecSync) < wanted {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = timeout(Duration::from_secs(60), called).await;
        assert!(waited.is_ok(), "too few probes: {}", kubelet.log());
    };
    fs::write(kubelet.dir.path().join("manifests/noisy.yaml"), pod).unwrap();
    calls(2 * CONTAINERS).await;
    let before = kubelet.peak_memory();
    kubelet.runtime.on_exec(|_, _| ExecSyncResponse {
        stdout: vec![b'o'; 5 * MIB],
        stderr: vec![b'e'; 5 * MIB],
        exit_code: 0,
    });
    calls(4 * CONTAINERS).await;
    let grown = kubelet.peak_memory() - before;
    assert!(grown < GROWTH, "{} MiB more", grown >> 20);
    let page = kubelet.get("/metrics").await.unwrap();
    let cut = "\nkubelet_runtime_exec_outputs_cut_total ";
    let (_, count) = page.split_once(cut).unwrap();
    let count: usize = count.lines().next().unwrap().parse().unwrap();
    assert!(count > CONTAINERS, "{count}");
    let pods = kubelet.get("/pods").await.unwrap();
    let ready = pods.matches(r#""ready":true"#).count();
    assert_eq!(ready, CONTAINERS, "the commands succeed: {pods}");
}
