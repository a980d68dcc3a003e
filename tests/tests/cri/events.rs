//! `GetContainerEvents` and the streaming lists.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cri_proto::runtime::v1::{
    self as cri, ContainerEventResponse, ContainerEventType as Kind, ContainerState,
    PodSandboxState, runtime_service_client::RuntimeServiceClient,
};
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};
use tonic::{Code, Streaming, transport::Endpoint};

const SOON: Duration = Duration::from_secs(60);

async fn listen(cri: &mut Cri) -> Streaming<ContainerEventResponse> {
    let request = cri::GetEventsRequest {};
    let response = cri.runtime.get_container_events(request).await.unwrap();
    response.into_inner()
}

async fn next(events: &mut Streaming<ContainerEventResponse>) -> ContainerEventResponse {
    let event = tokio::time::timeout(SOON, events.message()).await;
    event.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn every_listener_hears_a_pods_life_in_order_with_full_statuses() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    // Existing containers cause no events.
    let (old, _) = cri.run_pod("old", &["sleep", "1000"]).await.unwrap();
    let mut listeners = [listen(&mut cri).await, listen(&mut cri).await];

    let (pod, container) = cri.run_pod("new", &["sleep", "1000"]).await.unwrap();
    cri.stop(&container, 0).await.unwrap();
    cri.remove(&container).await.unwrap();
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();

    use ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};
    use PodSandboxState::{SandboxNotready, SandboxReady};
    let expected = [
        (&pod, Kind::ContainerCreatedEvent, None, None),
        (&pod, Kind::ContainerStartedEvent, Some(SandboxReady), None),
        (
            &container,
            Kind::ContainerCreatedEvent,
            Some(SandboxReady),
            Some(ContainerCreated),
        ),
        (
            &container,
            Kind::ContainerStartedEvent,
            Some(SandboxReady),
            Some(ContainerRunning),
        ),
        (
            &container,
            Kind::ContainerStoppedEvent,
            Some(SandboxReady),
            Some(ContainerExited),
        ),
        (
            &container,
            Kind::ContainerDeletedEvent,
            Some(SandboxReady),
            None,
        ),
        (
            &pod,
            Kind::ContainerStoppedEvent,
            Some(SandboxNotready),
            None,
        ),
        (&pod, Kind::ContainerDeletedEvent, None, None),
    ];
    for events in &mut listeners {
        let mut seen_at = 0;
        for (id, kind, sandbox_state, container_state) in &expected {
            let event = next(events).await;
            assert_ne!(event.container_id, old);
            assert_eq!(
                (&event.container_id, event.container_event_type()),
                (*id, *kind)
            );
            assert!(event.created_at >= seen_at);
            seen_at = event.created_at;
            let sandbox = event.pod_sandbox_status.unwrap();
            assert_eq!(sandbox.metadata.as_ref().unwrap().uid, "uid-new");
            if let Some(state) = sandbox_state {
                assert_eq!(sandbox.state(), *state, "{kind:?}");
            }
            let states: Vec<_> = event
                .containers_statuses
                .iter()
                .map(|s| s.state())
                .collect();
            assert_eq!(states, container_state.iter().copied().collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn a_container_that_ends_by_itself_is_told_and_a_stopping_shim_ends_the_stream() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let mut events = listen(&mut cri).await;
    let (_, id) = cri
        .run_pod("short", &["sh", "-c", "sleep 1; exit 3"])
        .await
        .unwrap();
    loop {
        let event = next(&mut events).await;
        if event.container_id == id && event.container_event_type() == Kind::ContainerStoppedEvent {
            assert_eq!(event.containers_statuses[0].exit_code, 3);
            break;
        }
    }
    drop(cri);
    node.stop_shim().await.unwrap();
    let end = tokio::time::timeout(SOON, events.message()).await.unwrap();
    assert!(matches!(end, Ok(None) | Err(_)));
}

#[tokio::test]
async fn a_listener_that_does_not_read_is_told_of_its_loss() {
    /// More changes than a listener may lag behind, including those already on their way.
    const CHANGES: usize = 1200;
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    // Large events quickly fill the buffers between the shim and the listener.
    let mut pod = sandbox("busy");
    let long = "x".repeat(16 * 1024);
    pod.annotations = BTreeMap::from([("long".to_owned(), long)]);
    let id = cri.run(&pod).await.unwrap();
    let endpoint = Endpoint::new(node.cri_endpoint()).unwrap();
    let endpoint = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    let mut slow = RuntimeServiceClient::new(endpoint.connect().await.unwrap());
    let request = cri::GetEventsRequest {};
    let slow = slow.get_container_events(request).await.unwrap();
    let mut slow = slow.into_inner();

    let mut quick = listen(&mut cri).await;
    let heard = Arc::new(AtomicUsize::new(0));
    let reader = tokio::spawn({
        let heard = Arc::clone(&heard);
        async move {
            let mut ids = Vec::new();
            while ids.len() < CHANGES {
                ids.push(next(&mut quick).await.container_id);
                heard.store(ids.len(), Ordering::Relaxed);
            }
            ids
        }
    });
    let makers = (0..4).map(|maker| {
        let (mut cri, id, pod) = (cri.clone(), id.clone(), pod.clone());
        let heard = Arc::clone(&heard);
        tokio::spawn(async move {
            let name = format!("c{maker}");
            while heard.load(Ordering::Relaxed) < CHANGES {
                let made = cri.create(&id, container(&name, &["true"]), &pod).await;
                cri.remove(&made.unwrap()).await.unwrap();
            }
        })
    });
    for maker in makers.collect::<Vec<_>>() {
        maker.await.unwrap();
    }
    let all = reader.await.unwrap();

    // The listener gets the events on their way in order, then the error, and nothing else.
    let mut told = Vec::new();
    let loss = loop {
        match tokio::time::timeout(SOON, slow.message()).await.unwrap() {
            Ok(event) => told.push(event.unwrap().container_id),
            Err(status) => break status,
        }
    };
    assert_eq!(loss.code(), Code::DataLoss, "{loss}");
    assert!(all.starts_with(&told), "{} events", told.len());
    assert!(matches!(slow.message().await, Ok(None)));
    // The client must list and listen again.
    let mut anew = listen(&mut cri).await;
    let made = cri.create(&id, container("last", &["true"]), &pod).await;
    assert_eq!(next(&mut anew).await.container_id, made.unwrap());
}

#[tokio::test]
async fn streamed_lists_are_the_lists() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for name in ["a", "b", "c"] {
        cri.run_pod(name, &["sleep", "1000"]).await.unwrap();
    }
    let pods = cri.pods(cri::PodSandboxFilter::default()).await.unwrap();
    let request = cri::StreamPodSandboxesRequest::default();
    let mut stream = cri.runtime.stream_pod_sandboxes(request).await.unwrap();
    let mut streamed = Vec::new();
    while let Some(part) = stream.get_mut().message().await.unwrap() {
        streamed.extend(part.pod_sandboxes);
    }
    assert_eq!(streamed, pods);

    let filter = cri::ContainerFilter {
        pod_sandbox_id: pods[0].id.clone(),
        ..Default::default()
    };
    let listed = cri.containers(filter.clone()).await.unwrap();
    let request = cri::StreamContainersRequest {
        filter: Some(filter),
    };
    let mut stream = cri.runtime.stream_containers(request).await.unwrap();
    let part = stream.get_mut().message().await.unwrap().unwrap();
    assert_eq!(part.containers, listed);
    assert_eq!(listed.len(), 1);

    let request = cri::StreamImagesRequest::default();
    let mut stream = cri.images.stream_images(request).await.unwrap();
    let part = stream.get_mut().message().await.unwrap().unwrap();
    let request = cri::ListImagesRequest::default();
    let listed = cri.images.list_images(request).await.unwrap().into_inner();
    assert_eq!(part.images, listed.images);
}

/// The container's limits in its cgroup: bytes of memory, and CPU quota in microseconds per 100000,
/// if limited.
async fn limit_in_cgroup(cri: &mut Cri, id: &str) -> (i64, Option<i64>) {
    let script = "cd /sys/fs/cgroup; if [ -e memory.max ]; then cat memory.max cpu.max; \
                  else cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us; fi";
    let said = cri.exec(id, &["sh", "-c", script], 10).await.unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let mut words = said.split_whitespace();
    let memory = words.next().unwrap().parse().unwrap();
    let quota = words.next().unwrap().parse().ok();
    (memory, quota.filter(|quota| *quota != -1))
}

#[tokio::test]
async fn limits_are_changed_while_a_container_runs() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("limits", &["sleep", "1000"]).await.unwrap();
    const LIMIT: i64 = 64 << 20;
    let request = |container_id: &str, linux| cri::UpdateContainerResourcesRequest {
        container_id: container_id.to_owned(),
        linux: Some(linux),
        ..Default::default()
    };
    let limits = cri::LinuxContainerResources {
        memory_limit_in_bytes: LIMIT,
        cpu_shares: 512,
        ..Default::default()
    };
    cri.runtime
        .update_container_resources(request(&id, limits))
        .await
        .unwrap();
    let resources = cri.status(&id).await.unwrap().resources.unwrap();
    let linux = resources.linux.unwrap();
    assert_eq!(
        (linux.memory_limit_in_bytes, linux.cpu_shares),
        (LIMIT, 512)
    );
    assert_eq!(limit_in_cgroup(&mut cri, &id).await, (LIMIT, None));

    // Increases and decreases, each without the other resource.
    let memory = |memory_limit_in_bytes| cri::LinuxContainerResources {
        memory_limit_in_bytes,
        ..Default::default()
    };
    let cpu = |cpu_quota| cri::LinuxContainerResources {
        cpu_quota,
        cpu_period: 100_000,
        ..Default::default()
    };
    for (limits, expected) in [
        (memory(2 * LIMIT), (2 * LIMIT, None)),
        (cpu(50_000), (2 * LIMIT, Some(50_000))),
        (memory(LIMIT / 2), (LIMIT / 2, Some(50_000))),
        (cpu(-1), (LIMIT / 2, None)),
    ] {
        let update = cri.runtime.update_container_resources(request(&id, limits));
        update.await.unwrap();
        assert_eq!(limit_in_cgroup(&mut cri, &id).await, expected);
    }
    // The engine cannot remove this limit, so the call must fail.
    let update = request(&id, memory(-1));
    let refused = cri.runtime.update_container_resources(update).await;
    let said = refused.unwrap_err();
    assert!(said.message().contains("emory"), "{said}");
    assert_eq!(limit_in_cgroup(&mut cri, &id).await, (LIMIT / 2, None));

    // Huge page limits belong to the pod's cgroup.
    let huge = cri::LinuxContainerResources {
        hugepage_limits: vec![cri::HugepageLimit {
            page_size: "2MB".into(),
            limit: 1 << 21,
        }],
        ..Default::default()
    };
    cri.runtime
        .update_container_resources(request(&id, huge))
        .await
        .unwrap();
    let request = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod,
        ..Default::default()
    };
    cri.runtime
        .update_pod_sandbox_resources(request)
        .await
        .unwrap();
}
