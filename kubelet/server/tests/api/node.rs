//! A node with one pod on the fake runtime, and its secure port.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cri_proto::runtime::v1 as cri;
use fake_runtime::FakeRuntime;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReviewStatus, UserInfo},
    authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus},
    core::v1::Pod,
};
use kubelet_cri_client::{
    CriClient, labels,
    pod_status::{ContainerStatus, PodStatus, SandboxStatus},
};
use kubelet_host::local_node::LocalNode;
use kubelet_http::roots::Roots;
use kubelet_logs::{LogError, LogOptions, LogParts};
use kubelet_metrics::Exposition;
use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_analyzer::{
    Amounts, Claim, FileUsage, PodFiles, PodUsage, Usages, VolumeUsage,
};
use kubelet_server::{
    ClusterDependencies, HealthCheck, NodeView, Servers,
    options::{
        AccessOptions, AuthenticationOptions, AuthorizationMode, CertificateSource, HandlerOptions,
        SecureOptions, ServerOptions,
    },
    reports::{GarbageReport, PressureReport},
    reviews::{ReviewError, Reviews},
    tls::parameters::TlsParameters,
};
use kubelet_stats::{
    CgroupSubject, Depth, NodeStats, PodSubject, StatsError, StatsProvider, Subjects,
};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::{Authority, Caller};

/// UID of the node's only pod.
pub(crate) const UID: &str = "uid-1";

#[derive(Clone)]
struct View {
    cri: CriClient,
    stats: Arc<StatsProvider>,
}

/// The pod has no cgroup on this machine, so that the runtime's numbers count.
#[derive(Debug)]
struct OnePod {
    runtime: FakeRuntime,
    sandbox: String,
}

impl Subjects for OnePod {
    fn pods(&self) -> Vec<PodSubject> {
        let sandbox = SandboxStatus {
            id: self.sandbox.clone(),
            attempt: 0,
            ready: true,
            created_at: 1_767_225_600_000_000_000,
            host_network: false,
            ips: Vec::new(),
        };
        let running = self.runtime.running("app");
        let containers = running.iter().map(|container| ContainerStatus {
            started_at: 1_767_225_601_000_000_000,
            ..ContainerStatus::started(container.id.clone(), "app".to_owned())
        });
        vec![PodSubject {
            pod: Arc::new(pods().remove(0)),
            cgroup: None,
            status: Arc::new(PodStatus {
                sandboxes: vec![sandbox],
                containers: containers.collect(),
            }),
        }]
    }

    fn cgroups(&self) -> Vec<CgroupSubject> {
        Vec::new()
    }
}

fn pods() -> Vec<Pod> {
    serde_json::from_value(json!([{
        "metadata": {"name": "web", "namespace": "default", "uid": UID},
        "spec": {"containers": [{"name": "app"}]},
        "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{
                "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
            }],
        },
    }]))
    .unwrap()
}

impl NodeView for View {
    fn pressure(&self) -> PressureReport {
        PressureReport {
            conditions: vec!["MemoryPressure".to_owned()],
            ..PressureReport::default()
        }
    }

    async fn garbage(&self) -> Result<GarbageReport, String> {
        Err("the runtime is away".to_owned())
    }

    fn local_node(&self) -> Arc<LocalNode> {
        Arc::new(LocalNode {
            name: "node-1".to_owned(),
            root_dir: PathBuf::from("/"),
            ..LocalNode::default()
        })
    }

    fn pods(&self) -> Vec<Pod> {
        pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        (namespace == "default" && name == "web").then(|| Arc::new(self.pods().remove(0)))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        Ok(self.pods())
    }

    fn health(&self, _check: HealthCheck) -> Result<(), String> {
        Ok(())
    }

    async fn container_log(
        &self,
        _namespace: &str,
        _pod: &str,
        _container: &str,
        options: LogOptions,
    ) -> Result<LogParts, LogError> {
        let (parts, receiver) = mpsc::channel(1);
        parts.send(Ok("a line\n".into())).await.unwrap();
        if options.follow {
            tokio::spawn(async move { parts.closed().await });
        }
        Ok(receiver)
    }

    fn collect(&self, page: &mut Exposition) {
        page.gauge("what_the_node_measures", "Of itself", 7);
    }

    fn collect_probes(&self, page: &mut Exposition) {
        page.gauge("what_probes_found", "Of its pods", 8);
    }

    fn set_verbosity(&self, verbosity: u32) -> Result<(), String> {
        match verbosity {
            0..=10 => Ok(()),
            _ => Err("nothing is logged at that".to_owned()),
        }
    }

    async fn stats(&self, depth: Depth) -> Result<Arc<NodeStats>, StatsError> {
        self.stats.younger_than(depth, Duration::ZERO).await
    }

    fn pod_usages(&self) -> Arc<Usages> {
        let amounts = |used| Amounts {
            total: 100_000,
            available: 90_000,
            used,
        };
        let volume = |used, is_local_ephemeral| VolumeUsage {
            bytes: amounts(used),
            inodes: amounts(used / 1000),
            is_local_ephemeral,
            ..VolumeUsage::default()
        };
        let claimed = VolumeUsage {
            claim: Some(Claim {
                namespace: "default".to_owned(),
                name: "data".to_owned(),
            }),
            is_abnormal: Some(true),
            ..volume(7000, false)
        };
        let volumes = [("claimed", claimed), ("scratch", volume(2000, true))];
        let logs = FileUsage {
            bytes: 300,
            inodes: 1,
        };
        let usage = PodUsage {
            volumes: volumes.map(|(name, usage)| (name.to_owned(), usage)).into(),
            files: Some(PodFiles {
                container_logs: [("app".to_owned(), logs)].into(),
                etc_hosts: Some(logs),
                ..PodFiles::default()
            }),
            ..PodUsage::default()
        };
        Arc::new([(PodUid::from(UID), Arc::new(usage))].into())
    }

    fn cri(&self) -> CriClient {
        self.cri.clone()
    }
}

/// The API server's reviews: users by token, and their access to subresources.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub tokens: Mutex<BTreeMap<String, String>>,
    pub allowed: Mutex<Vec<(String, String, String)>>,
    pub asked: Mutex<Vec<SubjectAccessReviewSpec>>,
    pub token_reviews: AtomicUsize,
    pub away: std::sync::atomic::AtomicBool,
}

impl Known {
    /// Allows a user a verb on a subresource; `*` matches any.
    pub(crate) fn allow(&self, user: &str, verb: &str, subresource: &str) {
        let [user, verb, subresource] = [user, verb, subresource].map(str::to_owned);
        self.allowed.lock().push((user, verb, subresource));
    }

    fn is_away(&self, resource: &'static str) -> Result<(), ReviewError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(ReviewError {
                resource,
                message: "connection refused".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

impl Reviews for Known {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>> {
        Box::pin(async move {
            self.token_reviews.fetch_add(1, Ordering::SeqCst);
            self.is_away("tokenreviews")?;
            let user = self.tokens.lock().get(token).cloned();
            Ok(TokenReviewStatus {
                authenticated: Some(user.is_some()),
                user: user.map(|name| UserInfo {
                    username: Some(name),
                    ..UserInfo::default()
                }),
                ..TokenReviewStatus::default()
            })
        })
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
        Box::pin(async move {
            self.is_away("subjectaccessreviews")?;
            let attributes = spec.resource_attributes.clone().unwrap();
            let is = |pattern: &str, value: &Option<String>| {
                pattern == "*" || value.as_deref().unwrap_or_default() == pattern
            };
            let allowed = self.allowed.lock().iter().any(|(user, verb, subresource)| {
                is(user, &spec.user)
                    && is(verb, &attributes.verb)
                    && is(subresource, &attributes.subresource)
            });
            self.asked.lock().push(spec);
            Ok(SubjectAccessReviewStatus {
                allowed,
                ..SubjectAccessReviewStatus::default()
            })
        })
    }
}

/// The node; it stops when dropped.
pub(crate) struct Node {
    pub runtime: FakeRuntime,
    pub sandbox: String,
    pub dir: tempfile::TempDir,
    pub authority: Authority,
    pub known: Arc<Known>,
    /// A client without credentials.
    pub stranger: Caller,
    pub cancel: CancellationToken,
    pub task: JoinHandle<()>,
    _end: DropGuard,
}

impl Node {
    /// A node with an API server that reviews tokens and access.
    pub(crate) async fn in_cluster() -> Self {
        Self::with(|_| {}).await
    }

    /// Like [`Self::in_cluster`], with changed options.
    pub(crate) async fn with(change: impl FnOnce(&mut SecureOptions)) -> Self {
        open_files();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new("clients");
        let ca_file = dir.path().join("ca.crt");
        fs::write(&ca_file, &authority.pem).unwrap();
        let mut options = secure_options(dir.path().to_owned());
        options.access = AccessOptions {
            authentication: AuthenticationOptions {
                client_ca_file: Some(ca_file),
                webhook: true,
                cache_ttl: Duration::from_secs(120),
                anonymous: false,
            },
            authorization: AuthorizationMode::Webhook {
                authorized_ttl: Duration::from_secs(300),
                unauthorized_ttl: Duration::from_secs(30),
            },
        };
        change(&mut options);
        let options = ServerOptions {
            secure: Some(options),
            ..ServerOptions::default()
        };
        let known = Arc::new(Known::default());
        let reviews: Arc<dyn Reviews> = known.clone();
        let cluster = ClusterDependencies {
            reviews: Some(reviews),
            certificate: None,
            metrics: Vec::new(),
        };
        let servers = Servers::bind(&options, dir.path(), cluster).await.unwrap();
        let [.., address] = servers.addresses();

        let runtime = FakeRuntime::new();
        let channel = runtime.channel();
        let cri = CriClient::from_channels(channel.clone(), channel, Duration::from_secs(5));
        let sandbox = start_pod(&runtime, &cri).await;
        let cancel = CancellationToken::new();
        let subjects = Arc::new(OnePod {
            runtime: runtime.clone(),
            sandbox: sandbox.clone(),
        });
        let stats = Arc::new(StatsProvider::new(subjects, cri.clone(), Path::new("/")));
        let task = tokio::spawn(servers.serve(View { cri, stats }, cancel.clone()));
        let trusts = fs::read_to_string(dir.path().join("pki/kubelet.crt")).unwrap_or_default();
        Self {
            runtime,
            sandbox,
            stranger: Caller::new(address.unwrap().to_string(), trusts),
            dir,
            authority,
            known,
            _end: cancel.clone().drop_guard(),
            cancel,
            task,
        }
    }

    /// A client whose certificate allows everything.
    pub(crate) fn admin(&self) -> Caller {
        self.known.allow("admin", "*", "*");
        self.stranger
            .with_identity(self.authority.client("admin", "admins"))
    }
}

/// Raises the process's limit of open files: it holds both ends of all connections.
fn open_files() {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Resource::Nofile, most).unwrap();
}

/// Options for a secure port on any free port, with its files in a directory.
pub(crate) fn secure_options(dir: PathBuf) -> SecureOptions {
    SecureOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        node_name: "node-1".to_owned(),
        certificate: CertificateSource::SelfSigned(dir.join("pki")),
        root_dir: dir,
        tls: TlsParameters::default(),
        access: AccessOptions::default(),
        handlers: HandlerOptions::default(),
        journal: None,
        streaming_roots: Roots::of_this_machine(),
        configz: json!({"kubeletconfig": {"maxPods": 110}}),
        flagz: BTreeMap::from([("node-labels".to_owned(), "a=b".to_owned())]),
    }
}

/// Runs the pod; returns its sandbox.
async fn start_pod(runtime: &FakeRuntime, cri: &CriClient) -> String {
    runtime.add_image("busybox");
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let sandbox_config = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: UID.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: BTreeMap::from([label(labels::POD_UID, UID)]),
        ..cri::PodSandboxConfig::default()
    };
    let sandbox = cri
        .run_pod_sandbox(sandbox_config.clone(), "")
        .await
        .unwrap();
    let config = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: "busybox".to_owned(),
            ..cri::ImageSpec::default()
        }),
        labels: BTreeMap::from([
            label(labels::POD_NAME, "web"),
            label(labels::POD_NAMESPACE, "default"),
            label(labels::POD_UID, UID),
            label(labels::CONTAINER_NAME, "app"),
        ]),
        ..cri::ContainerConfig::default()
    };
    let container = cri
        .create_container(&sandbox, config, sandbox_config)
        .await
        .unwrap();
    cri.start_container(&container).await.unwrap();
    sandbox
}
