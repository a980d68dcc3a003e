//! What drivers answer, report and offer.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_a_driver_answers_is_checked() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1"]);
    let pod = pod("u1", &["a"]);
    let device = |change: fn(&mut Device)| {
        let mut device = Device {
            request_names: vec!["one".to_owned()],
            pool_name: "pool".to_owned(),
            device_name: "d".to_owned(),
            cdi_device_ids: vec!["x.y/c=d".to_owned()],
            share_id: None,
        };
        change(&mut device);
        NodePrepareResourceResponse {
            devices: vec![device],
            error: String::new(),
        }
    };
    let refused = NodePrepareResourceResponse {
        devices: Vec::new(),
        error: "no power".to_owned(),
    };
    for (answer, says) in [
        (
            refused,
            "NodePrepareResources failed for ResourceClaim a: no power",
        ),
        (
            device(|it| it.pool_name.clear()),
            "NodePrepareResources: DRA driver gpu.example returned an invalid answer: \
             devices[0].pool_name: is empty",
        ),
        (
            device(|it| it.cdi_device_ids.push("no-cdi".to_owned())),
            "devices[0].cdi_device_ids[1]: \"no-cdi\" is no name of a CDI device \
             (vendor/class=name)",
        ),
        (
            device(|it| it.request_names.push("x".repeat(300 << 10))),
            "and at most 262144 are possible",
        ),
    ] {
        driver.set_answer("a", answer);
        let error = setup.prepare(&pod).await.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let long = NodePrepareResourceResponse {
        devices: Vec::new(),
        error: "x".repeat(100_000),
    };
    driver.set_answer("a", long);
    let error = setup.prepare(&pod).await.unwrap_err();
    assert!(error.len() < 2000, "{} bytes", error.len());
    driver.set_answer("a", device(|_| ()));
    driver.refuse(Some(Status::internal("busy")));
    let error = setup.prepare(&pod).await.unwrap_err();
    assert_eq!(error, "NodePrepareResources: DRA driver gpu.example: busy");
    driver.refuse(None);
    setup.prepare(&pod).await.unwrap();
    assert_eq!(setup.cdi(&pod).await, ["x.y/c=d"]);
    driver.take_calls();

    // A claim is the pod's until its driver has undone it.
    driver.set_stuck("in use");
    let error = setup.unprepare("u1").await.unwrap_err();
    assert_eq!(
        error,
        "NodeUnprepareResources failed for ResourceClaim a: in use"
    );
    assert_eq!(setup.manager.claims_of(&pod, container(&pod)).len(), 1);
    driver.set_stuck("");
    setup.unprepare("u1").await.unwrap();
    assert_eq!(driver.take_calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_driver_that_is_gone_are_deleted() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    setup.put_slices();
    setup.node.send_replace(None);
    let (manager, cancel) = (setup.manager.clone(), setup.cancel.clone());
    tokio::spawn(async move { manager.run(|_| Default::default(), cancel).await });
    sleep(10 * SECOND).await;
    assert_eq!(setup.slices(), ["gpu", "nic", "other-node"]);
    setup.node.send_replace(Some(Arc::default()));
    until("the deletion at the start", || {
        setup.slices() == ["other-node"]
    })
    .await;

    let serving = setup.register(&driver).await;
    setup.put_slices();
    sleep(60 * SECOND).await;
    assert_eq!(setup.slices().len(), 3);
    // The driver is killed, and comes back in time.
    serving.kill();
    until("the loss", || !setup.manager.drivers().is_usable(DRIVER)).await;
    sleep(20 * SECOND).await;
    let serving = driver.serve(setup.dir.path()).unwrap();
    until("the connection", || {
        setup.manager.drivers().is_usable(DRIVER)
    })
    .await;
    sleep(60 * SECOND).await;
    assert_eq!(setup.slices().len(), 3);
    // It is killed, and does not come back.
    serving.kill();
    until("the loss", || !setup.manager.drivers().is_usable(DRIVER)).await;
    sleep(25 * SECOND).await;
    assert_eq!(setup.slices().len(), 3);
    until("the deletion", || setup.slices() == ["nic", "other-node"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_health_of_devices_follows_the_driver() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let serving = setup.register(&driver).await;
    setup.put_claim("a", &["u1"]);
    let pod = pod("u1", &["a"]);
    setup.prepare(&pod).await.unwrap();
    let health = || {
        let health = setup.manager.health_of(&pod, container(&pod));
        let device = health["claim:a"][0].clone();
        assert_eq!(device.id, "gpu.example/claim=a");
        (device.health, device.message)
    };
    assert_eq!(health().0, Health::Unknown);
    driver.set_health("a", HealthStatus::Unhealthy, "hot");
    let changed = setup.manager.changed_pods().await;
    assert_eq!(changed, [PodUid::from("u1")].into());
    assert_eq!(health(), (Health::Unhealthy, Some("hot".to_owned())));
    driver.set_health("a", HealthStatus::Healthy, "");
    setup.manager.changed_pods().await;
    assert_eq!(health(), (Health::Healthy, None));
    let file = setup.dir.path().join("dra_health_state");
    let saved = || std::fs::read_to_string(&file).unwrap_or_default();
    until("the file", || saved().contains("\"Health\":\"Healthy\"")).await;
    // The driver is silent: a report holds for a time only.
    setup.manager.changed_pods().await;
    assert_eq!(health().0, Health::Unknown);
    driver.set_health("a", HealthStatus::Healthy, "");
    setup.manager.changed_pods().await;
    serving.kill();
    setup.manager.changed_pods().await;
    assert_eq!(health().0, Health::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_driver_registers_with_a_version_that_the_kubelet_has() {
    let setup = setup();
    let driver = FakeDraDriver::new(DRIVER);
    let check = |name: &str, versions: &[&str]| {
        let versions = versions.iter().map(|&it| it.to_owned()).collect();
        let endpoint = driver.endpoint(setup.dir.path());
        setup.manager.validate(&Plugin {
            name: name.to_owned(),
            endpoint,
            versions,
        })
    };
    check(DRIVER, &["v1alpha1.DRAResourceHealth", "v1.DRAPlugin"]).unwrap();
    check(DRIVER, &["v1beta1.DRAPlugin"]).unwrap();
    for (name, versions, says) in [
        (
            DRIVER,
            &["v1alpha4.Node"][..],
            "none of services supported by the plugin",
        ),
        (DRIVER, &[], "empty list of supported gRPC services"),
        (
            "a,spec.nodeName=b",
            &["v1.DRAPlugin"],
            "DRA driver name \"a,spec.nodeName=b\"",
        ),
        ("", &["v1.DRAPlugin"], "DRA driver name \"\""),
    ] {
        let error = check(name, versions).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let _serving = setup.register(&driver).await;
    let plugin = setup.plugin(&driver, DRIVER, "v1.DRAPlugin");
    let error = setup.manager.register(&plugin).await.unwrap_err();
    assert!(
        error.contains("already registered for DRA driver"),
        "{error}"
    );
    // One that has another socket takes its place, until it is gone.
    let mut second = plugin.clone();
    second.endpoint = setup.dir.path().join("nothing.sock");
    setup.manager.register(&second).await.unwrap();
    setup.put_claim("a", &["u1"]);
    setup.prepare(&pod("u1", &["a"])).await.unwrap();
    setup.manager.deregister(&plugin);
    setup.put_claim("b", &["u2"]);
    let error = setup.prepare(&pod("u2", &["b"])).await.unwrap_err();
    assert!(
        error.starts_with("NodePrepareResources: DRA driver gpu.example: "),
        "{error}"
    );
    setup.manager.deregister(&second);
    let error = setup.prepare(&pod("u2", &["b"])).await.unwrap_err();
    assert_eq!(error, "DRA driver gpu.example is not registered");
}
