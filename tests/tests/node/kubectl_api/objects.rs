//! Objects that `kubectl` reads and writes.

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{Cluster, words};

#[tokio::test]
async fn objects_are_shown_in_upstream_s_columns() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", 10250);
    cluster.add_pod("web", "n1").await;

    let pods = cluster.ok("get pods").await;
    let pods = words(&pods);
    assert_eq!(pods[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(pods[1][..4], ["web", "1/1", "Running", "0"]);
    let wide = cluster.ok("get pods -o wide -A").await;
    let wide = words(&wide);
    assert_eq!(
        wide[0].join(" "),
        "NAMESPACE NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    );
    assert_eq!(wide[1][6..], ["10.1.0.1", "n1", "<none>", "<none>"]);
    let nodes = cluster.ok("get nodes -o wide").await;
    let nodes = words(&nodes);
    assert_eq!(nodes[1][..3], ["n1", "Ready", "<none>"]);
    assert!(
        nodes[1][4..]
            .join(" ")
            .starts_with("v1.36.0 127.0.0.1 <none>")
    );
    for (kind, heading) in [
        ("configmaps", "NAME DATA AGE"),
        ("serviceaccounts", "NAME AGE"),
        ("namespaces", "NAME STATUS AGE"),
        ("services", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
    ] {
        let shown = cluster.ok(&format!("get {kind}")).await;
        let shown = words(&shown);
        assert_eq!(shown[0].join(" "), heading);
        assert!(shown.len() > 1, "{kind}");
    }
    let all = cluster.ok("get all").await;
    assert!(
        all.contains("pod/web") && all.contains("service/kubernetes"),
        "{all}"
    );
    assert_eq!(cluster.ok("get pods -l app=web -o name").await, "pod/web\n");
    let name = "get pods --field-selector spec.nodeName=n1 -o jsonpath={.items[*].metadata.name}";
    assert_eq!(cluster.ok(name).await, "web");
    let missing = cluster.refused("get pod none").await;
    assert_eq!(
        missing,
        "Error from server (NotFound): pods \"none\" not found\n"
    );
}

#[tokio::test]
async fn a_watch_prints_a_line_for_each_change() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", 10250);
    cluster.add_pod("web", "n1").await;
    let mut watch = cluster
        .kubectl
        .start(&["get", "pods", "--watch", "--output-watch-events"])
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = async || lines.next_line().await.unwrap().unwrap();
    assert!(next().await.starts_with("EVENT"));
    assert!(next().await.starts_with("ADDED"));
    cluster.ok("delete pod web --wait=false").await;
    let ending = next().await;
    assert!(
        ending.starts_with("MODIFIED") && ending.contains("Terminating"),
        "{ending}"
    );
    cluster.finish_deletion("web").await;
    assert!(next().await.starts_with("DELETED"));
}

#[tokio::test]
async fn descriptions_tell_of_a_pod_and_its_node() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", 10250);
    cluster.add_pod("web", "n1").await;
    let event = json!({
        "metadata": {"name": "web.1"}, "type": "Normal", "reason": "Started",
        "message": "Started container c", "source": {"component": "kubelet", "host": "n1"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "web",
            "uid": cluster.get("pods", "web")["metadata"]["uid"]},
        "firstTimestamp": "2026-11-01T00:00:00Z", "lastTimestamp": "2026-11-01T00:00:00Z", "count": 1,
    });
    cluster
        .server
        .create("v1", "events", "default", event)
        .unwrap();
    let pod = cluster.ok("describe pod web").await;
    for wanted in [
        "Node:             n1",
        "Status:           Running",
        "Started container c",
    ] {
        assert!(pod.contains(wanted), "{wanted:?} is not in {pod}");
    }
    let node = cluster.ok("describe node n1").await;
    for wanted in ["KubeletReady", "docker://26.1.5"] {
        assert!(node.contains(wanted), "{wanted:?} is not in {node}");
    }
    let lists_pod = words(&node)
        .iter()
        .any(|line| line.starts_with(&["default", "web"]));
    assert!(lists_pod, "{node}");
    let events = cluster.ok("get events").await;
    assert_eq!(
        words(&events)[0],
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    let events = cluster.ok("events --for pod/web").await;
    assert!(events.contains("Started container c"), "{events}");
}

#[tokio::test]
async fn pods_are_made_and_changed() {
    let cluster = Cluster::start().await;
    cluster.server.run_scheduler(true);
    cluster.add_node("n1", 10250);
    cluster
        .ok("run web --image=busybox:1 --env=A=1 --labels=app=web -- sleep 1000")
        .await;
    let pod = cluster.get("pods", "web");
    assert_eq!(pod["spec"]["nodeName"], "n1");
    assert_eq!(
        pod["spec"]["containers"][0]["args"],
        json!(["sleep", "1000"])
    );
    cluster.ok("set image pod/web web=busybox:2").await;
    cluster.ok("label pod web tier=front app-").await;
    cluster.ok("annotate pod web note=x").await;
    let pod = cluster.get("pods", "web");
    assert_eq!(pod["spec"]["containers"][0]["image"], "busybox:2");
    assert_eq!(
        pod["spec"]["containers"][0]["env"],
        json!([{"name": "A", "value": "1"}])
    );
    assert_eq!(pod["metadata"]["labels"], json!({"tier": "front"}));
    assert_eq!(pod["metadata"]["annotations"]["note"], "x");

    let resources =
        r#"{"spec":{"containers":[{"name":"web","resources":{"requests":{"cpu":"100m"}}}]}}"#;
    let resize = format!("patch pod web --subresource=resize --patch {resources}");
    let refused = cluster.refused(&resize).await;
    assert!(
        refused.contains("Pod QOS Class may not change"),
        "{refused}"
    );
    cluster.ok("run sized --image=busybox:1 --overrides={\"spec\":{\"containers\":[{\"name\":\"sized\",\"image\":\"busybox:1\",\"resources\":{\"requests\":{\"cpu\":\"50m\"}}}]}}").await;
    cluster.ok(&resize.replace("web", "sized")).await;
    assert_eq!(
        cluster.get("pods", "sized")["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "100m"
    );
    let moved = cluster
        .refused("patch pod web --type=merge --patch {\"spec\":{\"nodeName\":\"n2\"}}")
        .await;
    assert!(
        moved.contains("pod updates may not change fields other than"),
        "{moved}"
    );
    cluster
        .ok("debug web --image=busybox:1 --container=look --profile=general -- sleep 1")
        .await;
    let looking = &cluster.get("pods", "web")["spec"]["ephemeralContainers"][0];
    assert_eq!(looking["name"], "look");
}

#[tokio::test]
async fn a_manifest_is_applied_and_deleted() {
    let cluster = Cluster::start().await;
    let path = cluster.kubectl.home().join("pod.yaml");
    let manifest = |image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: {image}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  a: b\n"
        )
    };
    let path_text = path.to_str().unwrap();
    std::fs::write(&path, manifest("busybox:1")).unwrap();
    let made = cluster.ok(&format!("apply -f {path_text}")).await;
    assert_eq!(made, "pod/web created\nconfigmap/settings created\n");
    std::fs::write(&path, manifest("busybox:2")).unwrap();
    let changed = cluster.ok(&format!("apply -f {path_text}")).await;
    assert_eq!(
        changed,
        "pod/web configured\nconfigmap/settings unchanged\n"
    );
    assert_eq!(
        cluster.get("pods", "web")["spec"]["containers"][0]["image"],
        "busybox:2"
    );
    let server_side = cluster
        .ok(&format!(
            "apply --server-side --force-conflicts -f {path_text}"
        ))
        .await;
    assert!(server_side.contains("pod/web serverside-applied"));
    let again = cluster.refused(&format!("create -f {path_text}")).await;
    assert!(again.contains("pods \"web\" already exists"), "{again}");
    cluster.ok(&format!("delete -f {path_text}")).await;
    assert!(cluster.server.get("v1", "pods", "default", "web").is_err());
}

#[tokio::test]
async fn a_deletion_waits_for_the_kubelet_or_forces_the_pod_away() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", 10250);
    for name in ["slow", "forced"] {
        cluster.add_pod(name, "n1").await;
    }
    let mut deleting = cluster.kubectl.start(&["delete", "pod", "slow"]).unwrap();
    cluster.await_deletion("slow").await;
    assert!(deleting.try_wait().unwrap().is_none(), "it waits");
    cluster.finish_deletion("slow").await;
    assert!(deleting.wait().await.unwrap().success());
    cluster
        .ok("delete pod forced --force --grace-period=0")
        .await;
    assert!(
        cluster
            .server
            .get("v1", "pods", "default", "forced")
            .is_err()
    );
}

#[tokio::test]
async fn a_node_is_cordoned_drained_and_taken_back() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", 10250);
    let set = json!({"metadata": {"name": "agent"}, "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}},
    }});
    let set = cluster
        .server
        .create("apps/v1", "daemonsets", "default", set);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent",
        "uid": set.unwrap()["metadata"]["uid"], "controller": true}]);
    let pod = json!({
        "metadata": {"name": "agent-1", "ownerReferences": owner},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]},
    });
    cluster.server.create("v1", "pods", "default", pod).unwrap();
    cluster.add_pod("web", "n1").await;

    let refused = cluster.refused("drain n1").await;
    assert!(refused.contains("DaemonSet-managed Pods"), "{refused}");
    assert_eq!(cluster.get("nodes", "n1")["spec"]["unschedulable"], true);
    let draining = cluster
        .kubectl
        .start(&["drain", "n1", "--ignore-daemonsets", "--force"])
        .unwrap();
    cluster.await_deletion("web").await;
    assert_eq!(cluster.server.count("create", "pods/eviction"), 1);
    cluster.finish_deletion("web").await;
    let ended = draining.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(
        ended.status.success() && said.contains("node/n1 drained"),
        "{said}"
    );
    cluster.get("pods", "agent-1");
    cluster.ok("uncordon n1").await;
    assert_eq!(
        cluster.get("nodes", "n1")["spec"].get("unschedulable"),
        None
    );
    cluster.ok("taint node n1 a=b:NoSchedule").await;
    assert_eq!(
        cluster.get("nodes", "n1")["spec"]["taints"],
        json!([{"key": "a", "value": "b", "effect": "NoSchedule"}])
    );
}

#[tokio::test]
async fn discovery_and_access_are_told() {
    let cluster = Cluster::start().await;
    let resources = cluster.ok("api-resources").await;
    for wanted in ["pods", "leases", "poddisruptionbudgets", "runtimeclasses"] {
        assert!(
            words(&resources).iter().any(|line| line[0] == wanted),
            "{wanted} is not in {resources}"
        );
    }
    assert!(
        cluster
            .ok("api-versions")
            .await
            .contains("storage.k8s.io/v1\n")
    );
    assert!(
        cluster
            .ok("version")
            .await
            .contains("Server Version: v1.36.0")
    );
    assert_eq!(cluster.ok("get --raw /readyz").await, "ok");
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let secret = cluster.server.create("v1", "secrets", "default", secret);
    secret.unwrap();
    let secrets = cluster.ok("get secrets").await;
    assert_eq!(words(&secrets)[1][..3], ["s", "Opaque", "1"]);
}

#[tokio::test]
async fn an_edited_object_comes_in_through_standard_input() {
    let cluster = Cluster::start().await;
    let map = json!({"metadata": {"name": "c"}, "data": {"a": "1"}});
    let map = cluster.server.create("v1", "configmaps", "default", map);
    map.unwrap();
    let mut replacing = cluster
        .kubectl
        .command(&["replace", "-f", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let shown = cluster.ok("get configmap c -o yaml").await;
    let mut stdin = replacing.stdin.take().unwrap();
    stdin
        .write_all(shown.replace("a: \"1\"", "a: \"2\"").as_bytes())
        .await
        .unwrap();
    drop(stdin);
    assert!(replacing.wait().await.unwrap().success());
    assert_eq!(cluster.get("configmaps", "c")["data"]["a"], "2");
}

#[tokio::test]
async fn what_comes_as_protobuf_is_understood() {
    let cluster = Cluster::start().await;
    cluster.server.run_scheduler(true);
    cluster.add_node("n1", 10250);
    cluster.add_pod("web", "n1").await;
    assert!(cluster.ok("auth whoami").await.contains("kubernetes-admin"));
    assert_eq!(cluster.ok("auth can-i delete pods").await, "yes\n");
    let token = cluster.ok("create token default --duration=20m").await;
    assert_eq!(token.trim().split('.').count(), 3);
    cluster
        .ok("create secret generic s --from-literal=a=b")
        .await;
    assert_eq!(cluster.get("secrets", "s")["data"], json!({"a": "Yg=="}));
    cluster.ok("create configmap c --from-literal=a=b").await;
    assert_eq!(cluster.get("configmaps", "c")["data"], json!({"a": "b"}));
    cluster.ok("create namespace shop").await;
    cluster.ok("create serviceaccount clerk -n shop").await;
    cluster
        .ok("create deployment d --image=busybox:1 --port=80")
        .await;
    let deployment = cluster
        .server
        .get("apps/v1", "deployments", "default", "d")
        .unwrap();
    assert_eq!(
        deployment["spec"]["template"]["spec"]["containers"][0]["ports"],
        json!([{"containerPort": 80}])
    );

    cluster
        .ok("debug web --copy-to=copy --image=busybox:2 --container=look --profile=general -- sleep 1")
        .await;
    let copy = cluster.get("pods", "copy");
    let images = [
        &copy["spec"]["containers"][0]["image"],
        &copy["spec"]["containers"][1]["image"],
    ];
    assert_eq!(images, ["busybox:1", "busybox:2"]);
    assert_eq!(copy["spec"]["terminationGracePeriodSeconds"], 30);
    let said = cluster
        .ok("debug node/n1 --image=busybox:1 --profile=sysadmin -- sleep 1")
        .await;
    let name = said
        .split_whitespace()
        .find(|word| word.starts_with("node-debugger-"))
        .unwrap();
    let debugger = cluster.get("pods", name);
    assert_eq!(debugger["spec"]["hostPID"], true);
    assert_eq!(debugger["spec"]["nodeName"], "n1");
    assert_eq!(debugger["spec"]["volumes"][0]["hostPath"]["path"], "/");
    assert_eq!(
        debugger["spec"]["containers"][0]["securityContext"],
        json!({"privileged": true})
    );
}
