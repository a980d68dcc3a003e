//! `dockershim` with a real engine: each CRI call over its socket.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::BTreeMap, time::Duration};

use cri_proto::runtime::v1::{self as cri, ContainerState, PodSandboxState};
use e2e::{
    cri::{Cri, container, host_container, host_sandbox, sandbox},
    images::BUSYBOX,
    node::Node,
};
use tonic::Code;

/// The time for the live model to follow the engine.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_pod_lives_from_run_to_remove() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri
        .run_pod("web", &["sh", "-c", "exec sleep 1000"])
        .await
        .unwrap();

    // Each mutation is visible to the next call.
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert!(status.started_at >= status.created_at && status.created_at > 0);
    let pod_status = cri.pod_status(&pod).await.unwrap();
    assert_eq!(pod_status.state(), PodSandboxState::SandboxReady);
    let ip = pod_status.network.unwrap().ip;
    assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip}");

    cri.stop(&id, 1).await.unwrap();
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert!(status.finished_at >= status.started_at);

    cri.remove(&id).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap_err().code(), Code::NotFound);
    cri.stop_pod(&pod).await.unwrap();
    assert_eq!(
        cri.pod_status(&pod).await.unwrap().state(),
        PodSandboxState::SandboxNotready
    );
    cri.remove_pod(&pod).await.unwrap();
    assert_eq!(
        cri.pod_status(&pod).await.unwrap_err().code(),
        Code::NotFound
    );
    // All of these calls are idempotent.
    cri.stop(&id, 1).await.unwrap();
    cri.remove(&id).await.unwrap();
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn exit_codes_and_reasons_are_told() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for (name, command, code, reason) in [
        ("fine", ["sh", "-c", "exit 0"], 0, "Completed"),
        ("bad", ["sh", "-c", "exit 42"], 42, "Error"),
        ("killed", ["sh", "-c", "kill -9 $$"], 137, "Error"),
    ] {
        let (_, id) = cri.run_pod(name, &command).await.unwrap();
        let mut watcher = cri.clone();
        node.await_until("exited", SOON, async |_| {
            Ok(watcher.clone().status(&id).await?.state() == ContainerState::ContainerExited)
        })
        .await
        .unwrap();
        let status = watcher.status(&id).await.unwrap();
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_error_of_the_start() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let config = sandbox("nope");
    let pod = cri.run(&config).await.unwrap();
    let id = cri
        .create(&pod, container("main", &["/no/such/program"]), &config)
        .await
        .unwrap();
    let error = cri.start(&id).await.unwrap_err();
    assert!(error.message().contains("/no/such/program"), "{error:?}");
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(status.reason, "ContainerCannotRun");
    assert_ne!(status.exit_code, 0);
}

#[tokio::test]
async fn lists_filter_by_id_state_labels_and_sandbox() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let sleep = ["sleep", "1000"];
    let (web, web_main) = cri.run_pod("web", &sleep).await.unwrap();
    let (db, db_main) = cri.run_pod("db", &sleep).await.unwrap();
    cri.stop_pod(&db).await.unwrap();

    let label = |value: &str| BTreeMap::from([("app".to_owned(), value.to_owned())]);
    let pods = |filter| {
        let mut cri = cri.clone();
        async move {
            let mut ids: Vec<_> = cri
                .pods(filter)
                .await
                .unwrap()
                .into_iter()
                .map(|p| p.id)
                .collect();
            ids.sort();
            ids
        }
    };
    let mut both = vec![web.clone(), db.clone()];
    both.sort();
    assert_eq!(pods(cri::PodSandboxFilter::default()).await, both);
    let ready = cri::PodSandboxStateValue {
        state: PodSandboxState::SandboxReady.into(),
    };
    assert_eq!(
        pods(cri::PodSandboxFilter {
            state: Some(ready),
            ..Default::default()
        })
        .await,
        [web.as_str()]
    );
    assert_eq!(
        pods(cri::PodSandboxFilter {
            label_selector: label("db"),
            ..Default::default()
        })
        .await,
        [db.as_str()]
    );
    assert_eq!(
        pods(cri::PodSandboxFilter {
            id: web[..10].to_owned(),
            ..Default::default()
        })
        .await,
        [web.as_str()]
    );

    let containers = |filter| {
        let mut cri = cri.clone();
        async move {
            let mut ids: Vec<_> = cri
                .containers(filter)
                .await
                .unwrap()
                .into_iter()
                .map(|c| c.id)
                .collect();
            ids.sort();
            ids
        }
    };
    assert_eq!(
        containers(cri::ContainerFilter {
            pod_sandbox_id: db.clone(),
            ..Default::default()
        })
        .await,
        [db_main.as_str()]
    );
    let exited = cri::ContainerStateValue {
        state: ContainerState::ContainerExited.into(),
    };
    assert_eq!(
        containers(cri::ContainerFilter {
            state: Some(exited),
            ..Default::default()
        })
        .await,
        [db_main.as_str()]
    );
    assert_eq!(
        containers(cri::ContainerFilter {
            id: web_main[..10].to_owned(),
            label_selector: label("main"),
            ..Default::default()
        })
        .await,
        [web_main.as_str()]
    );
    assert!(
        containers(cri::ContainerFilter {
            label_selector: label("other"),
            ..Default::default()
        })
        .await
        .is_empty()
    );
}

#[tokio::test]
async fn exec_sync_gives_output_exit_code_and_keeps_its_deadline() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let done = cri
        .exec(&id, &["sh", "-c", "echo out; echo err >&2; exit 3"], 10)
        .await
        .unwrap();
    assert_eq!(
        (&done.stdout[..], &done.stderr[..], done.exit_code),
        (&b"out\n"[..], &b"err\n"[..], 3)
    );
    let late = cri.exec(&id, &["sleep", "500"], 1).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let mut watcher = cri.clone();
    node.await_until("the late command is gone", SOON, async |_| {
        let listed = watcher.clone().exec(&id, &["ps"], 10).await?;
        Ok(!String::from_utf8_lossy(&listed.stdout).contains("sleep 500"))
    })
    .await
    .unwrap();
    watcher.stop(&id, 0).await.unwrap();
    let stopped = watcher.exec(&id, &["true"], 10).await.unwrap_err();
    assert_ne!(stopped.code(), Code::Ok);
    assert!(stopped.message().contains(&id[..12]), "{stopped:?}");
}

#[tokio::test]
async fn a_container_gets_what_its_config_says() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let shared = node.path("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(shared.join("file"), "from the host").unwrap();

    let mut config = sandbox("web");
    config.hostname = "web-1".to_owned();
    config.dns_config = Some(cri::DnsConfig {
        servers: vec!["192.0.2.53".to_owned()],
        searches: vec!["svc.test".to_owned()],
        options: vec!["ndots:5".to_owned()],
    });
    let pod = cri.run(&config).await.unwrap();
    let mut wanted = container("main", &["sleep", "1000"]);
    wanted.working_dir = "/tmp".to_owned();
    wanted.envs = vec![cri::KeyValue {
        key: "GREETING".to_owned(),
        value: b"a=b c".to_vec(),
    }];
    wanted.mounts = vec![cri::Mount {
        container_path: "/shared".to_owned(),
        host_path: shared.display().to_string(),
        readonly: true,
        ..Default::default()
    }];
    wanted.linux = Some(cri::LinuxContainerConfig {
        resources: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            cpu_shares: 512,
            oom_score_adj: -997,
            ..Default::default()
        }),
        security_context: Some(cri::LinuxContainerSecurityContext {
            run_as_user: Some(cri::Int64Value { value: 1000 }),
            run_as_group: Some(cri::Int64Value { value: 1000 }),
            supplemental_groups: vec![4242],
            readonly_rootfs: true,
            ..Default::default()
        }),
    });
    let id = cri.create(&pod, wanted, &config).await.unwrap();
    cri.start(&id).await.unwrap();
    let out = async |script: &str| {
        let done = cri
            .clone()
            .exec(&id, &["sh", "-c", script], 10)
            .await
            .unwrap();
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    assert_eq!(out("hostname").await, "web-1\n");
    assert_eq!(out("pwd").await, "/tmp\n");
    assert_eq!(out("printf %s \"$GREETING\"").await, "a=b c");
    assert_eq!(out("cat /shared/file").await, "from the host");
    let refused = out("touch /shared/new /new").await;
    assert_eq!(
        refused.matches("Read-only file system").count(),
        2,
        "{refused}"
    );
    let identity = out("id").await;
    assert!(
        identity.contains("uid=1000") && identity.contains("gid=1000") && identity.contains("4242"),
        "{identity}"
    );
    let resolv = out("cat /etc/resolv.conf").await;
    for line in ["nameserver 192.0.2.53", "search svc.test", "ndots:5"] {
        assert!(resolv.contains(line), "{resolv}");
    }
    let resources = cri.status(&id).await.unwrap().resources.unwrap();
    assert_eq!(resources.linux.unwrap().memory_limit_in_bytes, 64 << 20);
}

#[tokio::test]
async fn wrong_requests_name_the_field_and_make_nothing() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let nameless = cri
        .run(&cri::PodSandboxConfig::default())
        .await
        .unwrap_err();
    assert_eq!(nameless.code(), Code::InvalidArgument);
    assert!(nameless.message().contains("metadata"), "{nameless:?}");

    let config = sandbox("web");
    let pod = cri.run(&config).await.unwrap();
    let mut imageless = container("main", &["true"]);
    imageless.image = None;
    let imageless = cri.create(&pod, imageless, &config).await.unwrap_err();
    assert_eq!(imageless.code(), Code::InvalidArgument);
    assert!(imageless.message().contains("image"), "{imageless:?}");

    let mut absent = container("main", &["true"]);
    absent.image.as_mut().unwrap().image = "e2e.local/absent:1".to_owned();
    let absent = cri.create(&pod, absent, &config).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    assert!(absent.message().contains("absent"), "{absent:?}");

    let lost = cri
        .create("0123456789ab", container("main", &["true"]), &config)
        .await
        .unwrap_err();
    assert_eq!(lost.code(), Code::NotFound);
    let left = cri.containers(cri::ContainerFilter::default()).await;
    assert!(left.unwrap().is_empty());
    let unserved = cri
        .runtime
        .checkpoint_pod(cri::CheckpointPodRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unserved.code(), Code::Unimplemented);
    assert!(unserved.message().contains("CheckpointPod"), "{unserved:?}");
    let unserved = cri
        .runtime
        .restore_pod(cri::RestorePodRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unserved.code(), Code::Unimplemented);
    assert!(unserved.message().contains("RestorePod"), "{unserved:?}");
}

#[tokio::test]
async fn ports_are_published_and_the_host_network_is_shared() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let serve = |port| ["httpd", "-f", "-p", port, "-h", "/www"];
    let mut published = sandbox("published");
    published.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: 8080,
        ..Default::default()
    }];
    let pod = cri.run(&published).await.unwrap();
    let id = cri
        .create(&pod, container("main", &serve("80")), &published)
        .await
        .unwrap();
    cri.start(&id).await.unwrap();

    let host = host_sandbox("host");
    let pod = cri.run(&host).await.unwrap();
    let on_host = host_container("main", &serve("8081"));
    let id = cri.create(&pod, on_host, &host).await.unwrap();
    cri.start(&id).await.unwrap();
    assert_eq!(cri.pod_status(&pod).await.unwrap().network.unwrap().ip, "");

    for port in ["8080", "8081"] {
        let url = format!("http://127.0.0.1:{port}/");
        node.await_until(&format!("{url} is served"), SOON, async |node| {
            let page = node.in_net(&["timeout", "5", "busybox", "wget", "-q", "-O", "-", &url])?;
            Ok(page.stdout == b"hello from the pod\n")
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn what_others_do_on_the_engine_is_followed() {
    let node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    docker.kill_container(&id, None).await.unwrap();
    node.await_until("the kill is seen", SOON, async |_| {
        Ok(cri.clone().status(&id).await?.state() == ContainerState::ContainerExited)
    })
    .await
    .unwrap();
    let force = bollard::query_parameters::RemoveContainerOptionsBuilder::new()
        .force(true)
        .build();
    for gone in [&id, &pod] {
        docker
            .remove_container(gone, Some(force.clone()))
            .await
            .unwrap();
    }
    node.await_until("the removal is seen", SOON, async |_| {
        Ok(cri
            .clone()
            .pods(cri::PodSandboxFilter::default())
            .await?
            .is_empty())
    })
    .await
    .unwrap();
    let foreign = bollard::models::ContainerCreateBody {
        image: Some(BUSYBOX.to_owned()),
        ..Default::default()
    };
    let options = None::<bollard::query_parameters::CreateContainerOptions>;
    docker.create_container(options, foreign).await.unwrap();
    // Once a later pod exists, the container's event has been processed.
    cri.run_pod("next", &["sleep", "1000"]).await.unwrap();
    let listed = cri.containers(cri::ContainerFilter::default()).await;
    assert_eq!(listed.unwrap().len(), 1);
}

#[tokio::test]
async fn a_killed_shim_finds_everything_again() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let before = (
        cri.pod_status(&pod).await.unwrap(),
        cri.status(&id).await.unwrap(),
    );
    node.kill_shim().unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let after = (
        cri.pod_status(&pod).await.unwrap(),
        cri.status(&id).await.unwrap(),
    );
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_sandbox_that_a_crash_left_half_made_is_removed_at_the_start() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (kept, _) = cri.run_pod("kept", &["sleep", "1000"]).await.unwrap();
    let docker = node.docker().unwrap();
    let model = docker
        .inspect_container(&kept, None)
        .await
        .unwrap()
        .config
        .unwrap();
    node.kill_shim().unwrap();
    let half = bollard::models::ContainerCreateBody {
        image: model.image,
        labels: model.labels,
        ..Default::default()
    };
    let name = bollard::query_parameters::CreateContainerOptionsBuilder::new()
        .name("k8s_POD_half_default_uid-half_0")
        .build();
    let half = docker.create_container(Some(name), half).await.unwrap().id;
    node.start_shim().await.unwrap();
    node.await_until("the half-made sandbox is gone", SOON, async |node| {
        let docker = node.docker()?;
        Ok(docker.inspect_container(&half, None).await.is_err())
    })
    .await
    .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    assert_eq!(
        cri.pod_status(&kept).await.unwrap().state(),
        PodSandboxState::SandboxReady
    );
}

#[tokio::test]
async fn lists_go_on_while_the_engine_hangs_or_is_away() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();

    node.engine().pause().unwrap();
    let listed = tokio::time::timeout(
        Duration::from_secs(5),
        cri.containers(cri::ContainerFilter::default()),
    )
    .await
    .expect("a list waited for the engine")
    .unwrap();
    assert_eq!(listed[0].id, id);
    cri.status(&id).await.unwrap();
    node.engine().resume().unwrap();

    node.engine_mut().stop().unwrap();
    let watcher = cri.clone();
    let ready = async || {
        let request = cri::StatusRequest { verbose: false };
        let response = watcher.runtime.clone().status(request).await?;
        let conditions = response.into_inner().status.unwrap().conditions;
        let ready = conditions.into_iter().find(|c| c.r#type == "RuntimeReady");
        anyhow::Ok(ready.unwrap())
    };
    node.await_until("not ready", SOON, async |_| Ok(!ready().await?.status))
        .await
        .unwrap();
    assert!(!ready().await.unwrap().message.is_empty());
    assert_eq!(cri.pods(Default::default()).await.unwrap().len(), 1);

    node.engine_mut().start_again().await.unwrap();
    node.await_until("ready again", SOON, async |_| Ok(ready().await?.status))
        .await
        .unwrap();
    // Stopping the engine ended the containers; the shim has noticed it.
    assert_eq!(
        cri.pod_status(&pod).await.unwrap().state(),
        PodSandboxState::SandboxNotready
    );
    assert_eq!(
        cri.status(&id).await.unwrap().state(),
        ContainerState::ContainerExited
    );
    cri.run_pod("again", &["sleep", "1000"]).await.unwrap();
}
