//! Port-forward to a pod's loopback addresses.

use e2e::{
    cri::{Cri, host_container, host_sandbox},
    node::Node,
};

use super::{BOTH, SOON, await_handles, exchange, handles};

const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

#[tokio::test]
async fn ports_of_a_pod_s_loopback_are_forwarded() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let serve = |address: &str| format!("exec httpd -f -p {address} -h /www");
    let v4 = serve("127.0.0.1:8080");
    let (pod, _) = cri.run_pod("p", &["sh", "-c", &v4]).await.unwrap();
    // Sandboxes on the engine's bridge have no IPv6, but the host network has it.
    let host = host_sandbox("host");
    let host_pod = cri.run(&host).await.unwrap();
    let v6 = serve("[::1]:8081");
    let config = host_container("main", &["sh", "-c", &v6]);
    let id = cri.create(&host_pod, config, &host).await.unwrap();
    cri.start(&id).await.unwrap();

    let pid = node.shim_pid().unwrap();
    let before = handles(pid);
    for transport in BOTH {
        for (pod, port) in [(&pod, 8080), (&host_pod, 8081)] {
            let forwarder = cri.port_forward(pod, transport).await.unwrap();
            node.await_until("the page comes", SOON, async |_| {
                let (back, _) = exchange(forwarder.connect(port).await?, GET).await;
                Ok(back.ends_with(b"hello from the pod\n"))
            })
            .await
            .unwrap();
            // Several connections at once over one session; busybox has a short listen backlog.
            let exchanges = (0..8).map(async |_| {
                let (back, error) = exchange(forwarder.connect(port).await.unwrap(), GET).await;
                assert!(back.ends_with(b"hello from the pod\n"));
                assert_eq!(error, "");
            });
            futures::future::join_all(exchanges).await;

            let (back, error) = exchange(forwarder.connect(9).await.unwrap(), GET).await;
            assert_eq!(back, b"");
            assert!(
                error.starts_with(&format!("error forwarding port 9 to pod {pod}, uid : failed to connect to localhost:9 inside namespace")),
                "{error}"
            );
        }
    }
    await_handles(&node, before).await;
}
