//! Running containers are neither stopped nor restarted, whatever is killed around them and
//! whichever events of the engine are lost.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use e2e::{engine_proxy::EngineProxy, node::Node};
use test_run::random::Random;
use tokio::time::{Instant, sleep};

use super::{
    CHAOS, PROXY, STEP,
    chaos::{behind_a_proxy, kill_engine, kill_shim, seconds, seed},
};

const PODS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_container_that_runs_is_started_again_whatever_is_killed() {
    let seed = seed();
    let mut node = Node::with_shim().await.unwrap();
    node.kill_shim().unwrap();
    node.engine_mut().stop().unwrap();
    // With live restore, containers survive a killed engine.
    node.engine_mut()
        .start_again_with(&["--live-restore"])
        .await
        .unwrap();
    node.start_shim().await.unwrap();
    node.start_kubelet().await.unwrap();
    let said = node.path("said");
    fs::create_dir(&said).unwrap();
    for n in 0..PODS {
        let name = format!("run-on-{n}");
        node.write_manifest(&format!("{name}.json"), &manifest(&name, &said))
            .unwrap();
    }
    for n in 0..PODS {
        node.await_running(&format!("run-on-{n}"), STEP)
            .await
            .unwrap();
    }

    // The proxy is added only now, because a failed start would count as a start.
    let proxy = behind_a_proxy(&mut node, Random::new(seed, PROXY))
        .await
        .unwrap();
    let until = Instant::now() + Duration::from_secs(seconds());
    let kills = kill(&mut node, &proxy, Random::new(seed, CHAOS), until)
        .await
        .unwrap();
    println!("{PODS} pods; {kills}; {proxy}");
    proxy.heal();
    for n in 0..PODS {
        let pod = node
            .await_running(&format!("run-on-{n}"), STEP)
            .await
            .unwrap();
        let container = &pod["status"]["containerStatuses"][0];
        let told = started_once(&said.join(format!("run-on-{n}")));
        if let Err(error) = told {
            panic!(
                "{error:#}: {container:#}\nkubelet:\n{}\nshim:\n{}",
                node.kubelet_log(),
                node.shim_log()
            );
        }
        assert_eq!(container["restartCount"], 0, "{container:#}");
    }
}

/// A pod whose container logs each start, and each stop signal.
fn manifest(name: &str, said: &Path) -> String {
    let script = format!(
        "trap 'echo told to end >> /said/{name}; exit' TERM; \
         echo started >> /said/{name}; while :; do sleep 1; done"
    );
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "containers": [{
                "name": "main",
                "image": e2e::images::BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "livenessProbe": { "exec": { "command": ["true"] }, "failureThreshold": 1000 },
                "volumeMounts": [{ "name": "said", "mountPath": "/said" }],
            }],
            "volumes": [{ "name": "said", "hostPath": { "path": said } }],
        },
    })
    .to_string()
}

fn started_once(file: &Path) -> Result<()> {
    let said = fs::read_to_string(file)?;
    ensure!(said == "started\n", "the container said {said:?}");
    Ok(())
}

/// Randomly kills and restarts the kubelet, the shim and the engine until `until`; returns a
/// summary.
async fn kill(
    node: &mut Node,
    proxy: &EngineProxy,
    mut random: Random,
    until: Instant,
) -> Result<String> {
    let (mut kubelets, mut shims, mut engines) = (0, 0, 0);
    while Instant::now() < until {
        sleep(random.millis(500, 4000)).await;
        match random.below(6) {
            0 => {
                engines += 1;
                kill_engine(node, &mut random).await?;
            }
            1 | 2 => {
                kubelets += 1;
                node.kill_kubelet()?;
                sleep(random.millis(0, 500)).await;
                node.start_kubelet().await?;
            }
            _ => {
                shims += 1;
                kill_shim(node, proxy, &mut random).await?;
            }
        }
    }
    Ok(format!(
        "the kubelet was killed {kubelets} times, the shim {shims}, the engine {engines}"
    ))
}
