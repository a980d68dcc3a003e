//! The tests' API server, used with the real `kubectl`. A small server replaces the kubelet where
//! one is necessary.

mod kubelet;
mod objects;
mod streams;

use std::time::Duration;

use e2e::kubectl::Kubectl;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use test_api_server::{ApiServer, Caller, Listening};

/// The time for `kubectl` to complete if nothing has to be waited for.
const SOON: Duration = Duration::from_secs(60);

/// A listening server, and the administrator's `kubectl`.
struct Cluster {
    server: ApiServer,
    kubectl: Kubectl,
    _listening: Listening,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::start().unwrap();
        let listening = server.listen().await.unwrap();
        let identity = server.identity(&Caller::admin()).unwrap();
        let kubectl = Kubectl::new(&listening.kubeconfig(&identity)).unwrap();
        Self {
            server,
            kubectl,
            _listening: listening,
        }
    }

    /// The output of a command that must succeed.
    async fn ok(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        tokio::time::timeout(SOON, self.kubectl.ok(&arguments))
            .await
            .unwrap_or_else(|_| panic!("kubectl {line} does not end"))
            .unwrap()
    }

    /// The output of a command once it succeeds.
    async fn once_ok(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let succeeds = async {
            loop {
                match self.kubectl.ok(&arguments).await {
                    Ok(written) => return written,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        tokio::time::timeout(SOON, succeeds)
            .await
            .unwrap_or_else(|_| panic!("kubectl {line} does not succeed"))
    }

    /// The errors of a command that must fail.
    async fn refused(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let ended = self.kubectl.run(&arguments).await.unwrap();
        assert_eq!(ended.code, Some(1), "kubectl {line}: {ended:?}");
        ended.stderr
    }

    /// Adds a ready node whose kubelet listens on the loopback interface at `port`.
    fn add_node(&self, name: &str, port: u16) {
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"},
                "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
                "nodeInfo": {"kubeletVersion": "v1.36.0", "architecture": "amd64",
                    "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12",
                    "containerRuntimeVersion": "docker://26.1.5", "operatingSystem": "linux"},
            },
        });
        self.server.create("v1", "nodes", "", node).unwrap();
    }

    /// Adds a running pod with one container on `node`.
    async fn add_pod(&self, name: &str, node: &str) {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "busybox:1"}]},
        });
        self.server.create("v1", "pods", "default", pod).unwrap();
        let started = json!({"startedAt": "2026-11-01T00:00:00Z"});
        let status = json!({"status": {
            "phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "ready": true, "started": true, "restartCount": 0,
                "image": "busybox:1", "imageID": "", "state": {"running": started}}],
        }});
        let patch = Patch::Merge(status);
        let params = PatchParams::default();
        let pods = self.objects("", "Pod");
        pods.patch_status(name, &params, &patch).await.unwrap();
    }

    fn objects(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(self.server.client(Caller::admin()), "default", &resource)
    }

    /// Waits until a pod has a deletion timestamp.
    async fn await_deletion(&self, name: &str) {
        let begun = async {
            while self.get("pods", name)["metadata"]["deletionTimestamp"].is_null() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let begun = tokio::time::timeout(SOON, begun).await;
        begun.unwrap_or_else(|_| panic!("{name} is not deleted"));
    }

    /// Removes a pod, as the kubelet does once its containers have terminated.
    async fn finish_deletion(&self, name: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.objects("", "Pod").delete(name, &now).await.unwrap();
    }

    fn get(&self, plural: &str, name: &str) -> Value {
        let namespace = if plural == "nodes" { "" } else { "default" };
        self.server.get("v1", plural, namespace, name).unwrap()
    }
}

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}
