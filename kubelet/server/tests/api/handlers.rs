//! Responses of the handlers.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use cri_proto::runtime::v1::ExecSyncResponse;
use fake_runtime::{Fault, Times, Usage, Verb};
use serde_json::{Value, json};

use crate::node::{Node, UID};

#[tokio::test]
async fn a_commands_output_is_returned_once_it_has_ended() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    node.runtime.on_exec(|_, command| match command {
        [name, word] if name == "echo" => ExecSyncResponse {
            stdout: format!("{word}\n").into_bytes(),
            ..ExecSyncResponse::default()
        },
        _ => ExecSyncResponse {
            stderr: "no such command".into(),
            exit_code: 127,
            ..ExecSyncResponse::default()
        },
    });
    for path in ["/run/default/web/app", "/run/default/web/uid-1/app"] {
        let answer = admin
            .request("POST", &format!("{path}?cmd=echo%20hello"), "")
            .await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "hello\n"));
    }
    let answer = admin
        .request("POST", "/run/default/web/app?cmd=nothing", "")
        .await;
    assert_eq!(answer.status, 500);
    assert_eq!(
        answer.body,
        "command 'nothing' exited with 127: no such command"
    );
    let answer = admin
        .request("POST", "/run/default/gone/app?cmd=x", "")
        .await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, "pod does not exist")
    );
}

#[tokio::test]
async fn a_checkpoint_is_written_by_the_runtime() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let answer = admin
        .request("POST", "/checkpoint/default/web/app", "")
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let items: Value = serde_json::from_str(&answer.body).unwrap();
    let location = items["items"][0].as_str().unwrap();
    let prefix = node
        .dir
        .path()
        .join("checkpoints/checkpoint-web_default-app-");
    assert!(location.starts_with(prefix.to_str().unwrap()), "{location}");
    let negative = "/checkpoint/default/web/app?timeout=-1";
    assert_eq!(admin.request("POST", negative, "").await.status, 500);
    for (path, status) in [
        ("/checkpoint/default/gone/app", 404),
        ("/checkpoint/default/web/none", 404),
        ("/checkpoint/default/web/app?timeout=x", 404),
    ] {
        assert_eq!(
            admin.request("POST", path, "").await.status,
            status,
            "{path}"
        );
    }
}

#[tokio::test]
async fn configuration_logs_and_pods_are_read() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let configz: Value = serde_json::from_str(&admin.get("/configz").await.body).unwrap();
    assert_eq!(configz, json!({"kubeletconfig": {"maxPods": 110}}));
    let statusz = admin.get("/statusz").await.body;
    assert!(statusz.contains("\nUp: 0 hr 00 min "), "{statusz:?}");
    assert!(
        statusz.contains("\nEmulation version: 1.36\n"),
        "{statusz:?}"
    );
    let flagz = admin.get("/flagz").await.body;
    assert!(flagz.ends_with("\n\nnode-labels=a=b\n"), "{flagz:?}");
    let log = admin.get("/containerLogs/default/web/app").await;
    assert_eq!(log.status, 200);
    assert!(log.body.contains("a line"), "{log:?}");
    let pods: Value = serde_json::from_str(&admin.get("/runningpods/").await.body).unwrap();
    assert_eq!(pods["kind"], "PodList");
    let listing = admin.get("/logs/").await;
    assert_eq!(listing.status, 200);
    assert!(listing.body.contains("<pre>"), "{listing:?}");
    assert_eq!(admin.get("/logs/../../etc/passwd").await.status, 400);
    let profile = admin.get("/debug/pprof/profile").await;
    assert_eq!(profile.status, 501);
    assert!(profile.body.contains("/debug/pprof/profile"), "{profile:?}");
}

#[tokio::test]
async fn logs_of_services_are_read_from_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journalctl");
    let script = "#!/bin/sh\nif [ $1 = --field ]; then echo web.service; else echo $*; fi\n";
    fs::write(&journal, script).unwrap();
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o700)).unwrap();
    let node = Node::with(|options| options.journal = Some(journal.clone())).await;
    let admin = node.admin();
    let log = admin.get("/logs/?query=web&tailLines=3").await;
    assert_eq!(log.status, 200);
    let arguments = "--utc --no-pager --lines=3 --unit=web --output=short-precise\n";
    assert!(log.body.contains(arguments), "{log:?}");
    for (path, status, body) in [
        (
            "/logs/?query=no-service-of-this-name",
            200,
            "log not found for no-service-of-this-name",
        ),
        (
            "/logs/?query=no-service&tailLines=1",
            200,
            "options present and query resolved to log",
        ),
        ("/logs/?query=no/such/file", 404, "404 page not found"),
        (
            "/logs/syslog?query=web",
            406,
            "path not allowed in query mode",
        ),
        ("/logs/?query=a%20b", 406, "query: Invalid value"),
        ("/logs/?query=web&boot=x", 400, "boot: Invalid value"),
        ("/logs/", 200, "<pre>"),
    ] {
        let answer = admin.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(body), "{path}: {answer:?}");
    }

    let node = Node::in_cluster().await;
    let ignored = node.admin().get("/logs/?query=web").await;
    assert!(ignored.body.contains("<pre>"), "{ignored:?}");
}

#[tokio::test]
async fn handlers_that_are_switched_off_say_so() {
    let node = Node::with(|options| {
        options.handlers.system_log = false;
        options.handlers.profiling = false;
        options.handlers.debug_flags = false;
        options.handlers.statusz = false;
        options.handlers.flagz = false;
        options.handlers.checkpoint = false;
    })
    .await;
    let admin = node.admin();
    for (method, path, body) in [
        ("GET", "/logs/", "logs endpoint is disabled.\n"),
        (
            "GET",
            "/debug/pprof/profile",
            "profiling endpoint is disabled.\n",
        ),
        ("PUT", "/debug/flags/v", "flags endpoint is disabled.\n"),
    ] {
        let answer = admin.request(method, path, "").await;
        assert_eq!((answer.status, answer.body.as_str()), (405, body), "{path}");
    }
    for path in ["/statusz", "/flagz", "/checkpoint/default/web/app"] {
        assert_eq!(admin.request("GET", path, "").await.status, 404, "{path}");
    }

    let node = Node::with(|options| options.handlers.debugging = false).await;
    let admin = node.admin();
    for path in [
        "/run/default/web/app",
        "/exec/default/web/app",
        "/attach/default/web/app",
        "/portForward/default/web",
        "/containerLogs/default/web/app",
        "/runningpods/",
        "/debug/pprof/profile",
        "/logs/",
    ] {
        let answer = admin.request("POST", path, "").await;
        let got = (answer.status, answer.body.as_str());
        assert_eq!(got, (405, "Debug endpoints are disabled.\n"), "{path}");
    }
    assert_eq!(admin.get("/configz").await.status, 404);
    assert_eq!(admin.get("/pods").await.status, 200);
}

#[tokio::test]
async fn an_oversized_request_is_refused_and_the_others_are_served() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let long = format!("/healthz?{}", "x".repeat(100 * 1024));
    assert_ne!(admin.get(&long).await.status, 200);
    let body = "9".repeat(10_000);
    assert_eq!(
        admin.request("PUT", "/debug/flags/v", &body).await.status,
        400
    );
    assert_eq!(admin.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn the_verbosity_of_the_log_is_set() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    for (wanted, status, answer) in [
        ("4", 200, "successfully set klog.logging.verbosity to 4"),
        (
            "11",
            400,
            "failed set klog.logging.verbosity 11: nothing is logged at that",
        ),
    ] {
        let told = admin.request("PUT", "/debug/flags/v", wanted).await;
        assert_eq!((told.status, told.body.trim_end()), (status, answer));
    }
}

#[tokio::test]
async fn usage_is_told_as_metrics_server_and_upstreams_clients_read_it() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let container = node.runtime.running("app")[0].id.clone();
    let usage = Usage {
        cpu_nanos: 2_500_000_000,
        memory_bytes: 1 << 20,
    };
    node.runtime.set_usage(&container, usage);

    let summary: Value = serde_json::from_str(&admin.get("/stats/summary").await.body).unwrap();
    assert_eq!(summary["node"]["nodeName"], "node-1");
    assert!(
        summary["node"]["memory"]["workingSetBytes"]
            .as_u64()
            .unwrap()
            > 0
    );
    let pod = &summary["pods"][0];
    assert_eq!(
        pod["podRef"],
        json!({"name": "web", "namespace": "default", "uid": UID})
    );
    assert_eq!(pod["startTime"], "2026-01-01T00:00:00Z");
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 2_500_000_000_u64);
    assert_eq!(pod["containers"][0]["name"], "app");
    assert_eq!(pod["containers"][0]["memory"]["workingSetBytes"], 1 << 20);
    let volumes: Vec<(&Value, &Value)> = pod["volume"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| (&volume["name"], &volume["usedBytes"]))
        .collect();
    assert_eq!(
        volumes,
        [
            (&json!("claimed"), &json!(7000)),
            (&json!("scratch"), &json!(2000))
        ]
    );
    let claimed = &pod["volume"][0];
    assert_eq!(
        claimed["pvcRef"],
        json!({"name": "data", "namespace": "default"})
    );
    assert_eq!(claimed["volumeHealthStats"], json!({"abnormal": true}));
    assert_eq!(claimed["inodesUsed"], 7);
    assert_eq!(pod["volume"][1]["pvcRef"], Value::Null);
    assert_eq!(pod["containers"][0]["logs"]["usedBytes"], 300);
    // The volume that lives as long as the pod, the log and the hosts file.
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], 2600);
    // Over a shorter time, there is no rate.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let again: Value = serde_json::from_str(&admin.get("/stats/summary").await.body).unwrap();
    assert!(again["node"]["cpu"]["usageNanoCores"].is_u64(), "{again}");

    let metrics = admin.get("/metrics/resource").await.body;
    for line in [
        "# TYPE container_cpu_usage_seconds_total counter",
        "container_cpu_usage_seconds_total{container=\"app\",namespace=\"default\",pod=\"web\"} 2.5 ",
        "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 1048576 ",
        "container_start_time_seconds{container=\"app\",namespace=\"default\",pod=\"web\"} 1767225601",
        "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 2.5 ",
        "node_memory_working_set_bytes ",
        "resource_scrape_error 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    // Upstream hides it since 1.30.
    assert!(!metrics.contains("\nscrape_error"), "{metrics}");
    let cadvisor = admin.get("/metrics/cadvisor").await.body;
    for line in [
        "# TYPE container_cpu_usage_seconds_total counter".to_owned(),
        format!(
            "container_memory_working_set_bytes{{container=\"app\",id=\"\",image=\"\",name=\"{container}\",namespace=\"default\",pod=\"web\"}} 1048576 "
        ),
        "container_memory_working_set_bytes{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} ".to_owned(),
        "container_scrape_error 0".to_owned(),
    ] {
        assert!(cadvisor.contains(&line), "{line} is not in {cadvisor}");
    }
    let brief = admin
        .request("POST", "/stats/summary?only_cpu_and_memory=true", "")
        .await;
    let brief: Value = serde_json::from_str(&brief.body).unwrap();
    assert_eq!(
        brief["pods"][0]["cpu"]["usageCoreNanoSeconds"],
        2_500_000_000_u64
    );
    assert_eq!(brief["node"]["network"], Value::Null);
    assert_eq!(brief["pods"][0]["ephemeral-storage"], Value::Null);

    // A runtime without sandbox stats.
    let no_pods = Fault::Error(tonic::Status::unknown("the cgroup's path is empty"));
    node.runtime
        .fault(Verb::ListPodSandboxStats, no_pods, Times::Always);
    let summary: Value = serde_json::from_str(&admin.get("/stats/summary").await.body).unwrap();
    let pod = &summary["pods"][0];
    assert_eq!(
        pod["podRef"],
        json!({"name": "web", "namespace": "default", "uid": UID})
    );
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 2_500_000_000_u64);
    assert_eq!(pod["containers"][0]["memory"]["workingSetBytes"], 1 << 20);
    let metrics = admin.get("/metrics/resource").await.body;
    let line = "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 2.5 ";
    assert!(metrics.contains(line), "{metrics}");

    let away = Fault::Error(tonic::Status::unavailable("the runtime is away"));
    node.runtime.fault_all(&away, Times::Always);
    assert_eq!(admin.get("/stats/summary").await.status, 500);
    let metrics = admin.get("/metrics/resource").await.body;
    assert!(metrics.contains("resource_scrape_error 1"), "{metrics}");
    assert!(
        metrics.contains("node_cpu_usage_seconds_total "),
        "{metrics}"
    );
}

#[tokio::test]
async fn metrics_tell_of_the_node_of_the_process_and_of_requests() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    assert_eq!(admin.get("/pods").await.status, 200);
    assert_eq!(node.stranger.get("/pods").await.status, 401);
    admin.get("/exec/nothing/of/it").await;
    let answer = admin.get("/metrics").await;
    assert_eq!(answer.status, 200);
    let requests = "kubelet_http_requests_total{method=\"GET\",path=";
    let inflight = "kubelet_http_inflight_requests{method=\"GET\",path=";
    let server = "server_type=\"readwrite\",long_running=";
    for line in [
        "# TYPE kubernetes_build_info gauge".to_owned(),
        "kubelet_node_name{node=\"node-1\"} 1".to_owned(),
        "what_the_node_measures 7".to_owned(),
        "# TYPE process_cpu_seconds_total counter".to_owned(),
        "process_resident_memory_bytes ".to_owned(),
        // Rejected requests are counted too.
        format!("{requests}\"pods\",{server}\"false\"}} 2"),
        format!("{requests}\"exec\",{server}\"true\"}} 1"),
        format!("{inflight}\"metrics\",{server}\"false\"}} 1"),
        format!("{inflight}\"pods\",{server}\"false\"}} 0"),
        "# TYPE kubelet_http_requests_duration_seconds histogram".to_owned(),
    ] {
        let is_there = answer.body.lines().any(|found| found.starts_with(&line));
        assert!(is_there, "{line} is not in {}", answer.body);
    }
    let mut families: Vec<&str> = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    let all = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), all, "a family is there twice");

    let probes = admin.get("/metrics/probes").await;
    assert_eq!(probes.status, 200);
    assert!(probes.body.contains("\nwhat_probes_found 8\n"));
    assert!(probes.body.contains("\nprocess_start_time_seconds "));
    assert!(!probes.body.contains("what_the_node_measures"));
}

#[tokio::test]
async fn what_is_not_built_says_so_by_name() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    for path in [
        "/debug/pprof/profile",
        "/debug/pprof/heap",
        "/debug/pprof/trace",
    ] {
        let answer = admin.get(path).await;
        assert_eq!(answer.status, 501);
        assert!(answer.body.contains(path), "{answer:?}");
    }
}

#[tokio::test]
async fn the_machine_is_described() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let machine: Value = serde_json::from_str(&admin.get("/spec/").await.body).unwrap();
    for number in ["num_cores", "num_physical_cores", "memory_capacity"] {
        assert!(machine[number].as_u64().unwrap() > 0, "{machine}");
    }
    let thread = &machine["topology"][0]["cores"][0]["thread_ids"][0];
    assert!(thread.is_u64(), "{machine}");
    let page = admin.get("/metrics/cadvisor").await.body;
    for line in [
        "# TYPE machine_cpu_cores gauge\nmachine_cpu_cores{boot_id=\"",
        "\ncadvisor_version_info{cadvisorRevision=\"\",",
        "\nmachine_scrape_error 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}
