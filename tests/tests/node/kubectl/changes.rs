//! Changes by `kubectl`: run, delete, set image, resize, trust bundles, cordon, drain.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    cluster::Cluster,
    images::BUSYBOX,
    node::{Node, is_ready},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::row::{Row, SOON, apply, create, gone, running, with_input};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "run",
            run: |on| Box::pin(run(on)),
        },
        Row {
            name: "run -i --rm",
            run: |on| Box::pin(run_attached(on)),
        },
        Row {
            name: "delete",
            run: |on| Box::pin(delete(on)),
        },
        Row {
            name: "delete --force",
            run: |on| Box::pin(force_delete(on)),
        },
        Row {
            name: "set image",
            run: |on| Box::pin(set_image(on)),
        },
        Row {
            name: "patch --subresource=resize",
            run: |on| Box::pin(resize(on)),
        },
        Row {
            name: "a trust bundle in a volume",
            run: |on| Box::pin(trust_bundle(on)),
        },
        Row {
            name: "a static pod's mirror",
            run: |on| Box::pin(mirror(on)),
        },
        Row {
            name: "the API server away for a minute",
            run: |on| Box::pin(away(on)),
        },
        Row {
            name: "cordon, drain",
            run: |on| Box::pin(drain(on)),
        },
    ]
}

async fn run(on: &Cluster) -> Result<()> {
    let image = format!("--image={BUSYBOX}");
    let args = [
        "run",
        "once",
        &image,
        "--image-pull-policy=Never",
        "--restart=Never",
        "--",
    ];
    on.kubectl_prints(&[&args[..], &["sh", "-c", "exit 4"]].concat())?;
    let pod = on
        .await_pod("once", SOON, |pod| pod["status"]["phase"] == "Failed")
        .await?;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["exitCode"] == 4 && ended["reason"] == "Error",
        "{pod}"
    );
    let table = on.kubectl_prints(&["get", "pod", "once", "--no-headers"])?;
    ensure!(table.contains("Error"), "{table}");
    gone(on, "once").await
}

async fn run_attached(on: &Cluster) -> Result<()> {
    let image = format!("--image={BUSYBOX}");
    let args = ["run", "passing", "--rm", "-i", "--restart=Never", &image];
    let command = ["--image-pull-policy=Never", "--", "sh", "-c"];
    let run = |script| {
        let args = [&args[..], &command, &[script]].concat();
        with_input(on, &args, "through\n")
    };
    let (code, out, error) = run("cat")?;
    ensure!(
        code == Some(0) && out.starts_with("through\n"),
        "{code:?} {out} {error}"
    );
    ensure!(out.contains("\"passing\" deleted"), "{out}");
    ensure!(on.pod("passing").await?.is_null());
    let (code, out, error) = run("cat; exit 3")?;
    ensure!(
        code == Some(3) && out.starts_with("through\n"),
        "{code:?} {out} {error}"
    );
    ensure!(on.pod("passing").await?.is_null());
    Ok(())
}

async fn delete(on: &Cluster) -> Result<()> {
    let script = "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done";
    let more = json!({"terminationGracePeriodSeconds": 20});
    create(on, "leaves", script, more)?;
    on.await_pod("leaves", SOON, is_ready).await?;
    // The command waits until the pod is gone.
    let said = on.kubectl_prints(&["delete", "pod", "leaves"])?;
    ensure!(said.contains("\"leaves\" deleted"), "{said}");
    ensure!(on.pod("leaves").await?.is_null());
    let running = on.kubectl_prints(&["get", "--raw", "/api/v1/nodes/node/proxy/runningpods/"])?;
    ensure!(!running.contains("\"leaves\""), "{running}");
    Ok(())
}

async fn force_delete(on: &Cluster) -> Result<()> {
    let more = json!({"terminationGracePeriodSeconds": 5});
    create(
        on,
        "stays",
        "trap '' TERM; while :; do sleep 0.1; done",
        more,
    )?;
    on.await_pod("stays", SOON, is_ready).await?;
    on.kubectl_prints(&["delete", "pod", "stays", "--force", "--grace-period=0"])?;
    ensure!(on.pod("stays").await?.is_null());
    on.node
        .await_until("the container to be gone", SOON, async |_| {
            let path = "/api/v1/nodes/node/proxy/runningpods/";
            Ok(!on
                .kubectl_prints(&["get", "--raw", path])?
                .contains("\"stays\""))
        })
        .await
}

async fn set_image(on: &Cluster) -> Result<()> {
    let before = running(on, "changes", "exec sleep 1000").await?;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    // Another name of the same image.
    let image = BUSYBOX.replace("e2e.local", "e2e.local:443");
    let _ = on.kubectl_prints(&["set", "image", "pod/changes", &format!("c={image}")])?;
    let pod = on
        .await_pod("changes", SOON, |pod| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            waiting["reason"] == "ErrImageNeverPull"
        })
        .await?;
    ensure!(
        pod["status"]["containerStatuses"][0]["image"] != "",
        "{pod}"
    );
    on.kubectl_prints(&["set", "image", "pod/changes", &format!("c={BUSYBOX}")])?;
    let after = on.await_pod("changes", SOON, is_ready).await?;
    ensure!(id(&before) != id(&after), "the container was not replaced");
    gone(on, "changes").await
}

async fn resize(on: &Cluster) -> Result<()> {
    let sized = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let container = json!({"containers": [{
        "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
        "command": ["sh", "-c", "exec sleep 1000"], "resources": sized("100m", "48Mi"),
    }]});
    create(on, "grows", "", container)?;
    let before = on.await_pod("grows", SOON, is_ready).await?;
    let status = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    for (cpu, memory, bytes) in [("200m", "96Mi", 96 << 20), ("100m", "32Mi", 32 << 20)] {
        let patch =
            json!({"spec": {"containers": [{"name": "c", "resources": sized(cpu, memory)}]}});
        on.kubectl_prints(&[
            "patch",
            "pod",
            "grows",
            "--subresource=resize",
            "--patch",
            &patch.to_string(),
        ])?;
        let after = on
            .await_pod("grows", SOON, |pod| {
                let limits = &status(pod)["resources"]["limits"];
                limits["cpu"] == cpu && limits["memory"] == memory
            })
            .await?;
        ensure!(
            status(&before)["containerID"] == status(&after)["containerID"],
            "restarted"
        );
        // The memory limit in the cgroup, independent of the status.
        let script =
            "cd /sys/fs/cgroup; cat memory.max 2>/dev/null || cat memory/memory.limit_in_bytes";
        let held = on.kubectl_prints(&["exec", "grows", "--", "sh", "-c", script])?;
        ensure!(held.trim() == bytes.to_string(), "{memory} is {held}");
    }
    gone(on, "grows").await
}

async fn trust_bundle(on: &Cluster) -> Result<()> {
    let certificate = || -> Result<String> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&KeyPair::generate()?)?;
        Ok(certificate.pem().replace("\r\n", "\n"))
    };
    let (first, second) = (certificate()?, certificate()?);
    let name = "e2e.local:ca:1";
    let bundle = json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": name},
        "spec": {"signerName": "e2e.local/ca", "trustBundle": first},
    });
    apply(on, &bundle)?;
    let source = json!({"path": "ca.pem", "signerName": "e2e.local/ca", "labelSelector": {}});
    let more = json!({
        "containers": [{
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sleep", "1000"], "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        }],
        "volumes": [{
            "name": "ca", "projected": {"sources": [{"clusterTrustBundle": source}]},
        }],
    });
    create(on, "trusts", "", more)?;
    on.await_pod("trusts", SOON, is_ready).await?;
    let seen = || on.kubectl_prints(&["exec", "trusts", "--", "cat", "/ca/ca.pem"]);
    ensure!(seen()? == first);
    let patch = json!({"spec": {"trustBundle": second}}).to_string();
    let bundles = "clustertrustbundle";
    on.kubectl_prints(&["patch", bundles, name, "--type=merge", "--patch", &patch])?;
    // A changed pod is synced immediately, including its volumes.
    on.kubectl_prints(&["annotate", "pod", "trusts", "bundle=2"])?;
    let is_new = async |_: &Node| Ok(seen()? == second);
    on.node
        .await_until("the other certificate", 2 * SOON, is_new)
        .await?;
    gone(on, "trusts").await
}

async fn mirror(on: &Cluster) -> Result<()> {
    on.node.write_manifest(
        "own.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: own}}\nspec:\n  \
             terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    \
             image: {BUSYBOX}\n    imagePullPolicy: Never\n    command: [sleep, '1000']\n"
        ),
    )?;
    let mirror = on.await_pod("own-node", SOON, is_ready).await?;
    ensure!(
        mirror["metadata"]["ownerReferences"][0]["kind"] == "Node",
        "{mirror}"
    );
    let seen = on.kubectl_prints(&["exec", "own-node", "--", "echo", "here"])?;
    ensure!(seen == "here\n", "{seen}");
    let uid = mirror["metadata"]["uid"].clone();
    // The mirror is recreated, and the container keeps running.
    on.kubectl_prints(&["delete", "pod", "own-node", "--force", "--grace-period=0"])?;
    let again = on
        .await_pod("own-node", SOON, |pod| {
            is_ready(pod) && pod["metadata"]["uid"] != uid
        })
        .await?;
    ensure!(
        again["status"]["containerStatuses"][0]["containerID"]
            == mirror["status"]["containerStatuses"][0]["containerID"]
    );
    on.node.remove_manifest("own.yaml")?;
    on.await_pod("own-node", SOON, Value::is_null).await?;
    Ok(())
}

async fn away(on: &Cluster) -> Result<()> {
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    running(on, "ticks", "sleep 20; exit 1").await?;
    let said = |what: &str| on.node.kubelet_log().matches(what).count();
    let (lost, back) = (
        "cannot reach the API server; retrying",
        "the API server is reachable again",
    );
    let (before, lines) = ([said(lost), said(back)], said("\n"));
    on.control_plane.set_available(false).await?;
    sleep(Duration::from_secs(60)).await;
    on.control_plane.set_available(true).await?;
    on.await_pod("ticks", SOON, |pod| restarts(pod) > Some(0))
        .await?;
    // The API server records the status a moment before the kubelet gets the response.
    let is_back = async |_: &Node| Ok(said(back) > before[1]);
    on.node
        .await_until("the log to say so", SOON, is_back)
        .await?;
    let now = [said(lost), said(back)];
    ensure!(now == before.map(|count| count + 1), "{before:?} {now:?}");
    let lines = said("\n") - lines;
    ensure!(lines < 30, "{lines} lines: {}", on.node.kubelet_log());
    gone(on, "ticks").await
}

async fn drain(on: &Cluster) -> Result<()> {
    running(on, "drained", "exec sleep 1000").await?;
    on.kubectl_prints(&["cordon", "node"])?;
    let table = on.kubectl_prints(&["get", "node", "node", "--no-headers"])?;
    ensure!(table.contains("Ready,SchedulingDisabled"), "{table}");
    on.kubectl_prints(&["drain", "node", "--force", "--timeout=50s"])?;
    ensure!(on.pod("drained").await?.is_null());
    on.kubectl_prints(&["uncordon", "node"])?;
    let table = on.kubectl_prints(&["get", "node", "node", "--no-headers"])?;
    ensure!(!table.contains("SchedulingDisabled"), "{table}");
    Ok(())
}
