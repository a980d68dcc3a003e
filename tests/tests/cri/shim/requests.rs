//! Requests: filters of lists, the config of a container, ports, and what is refused.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{self as cri, ContainerState, PodSandboxState};
use e2e::{
    cri::{Cri, container, host_container, host_sandbox, sandbox},
    node::Node,
};
use tonic::Code;

use super::SOON;

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
