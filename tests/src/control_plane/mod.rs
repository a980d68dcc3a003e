//! The control plane of a test's cluster. There are two kinds: the API server of the tests, which
//! is always available, and the Kubernetes servers if the machine has them. Tests use both in the
//! same way and expect the same of both.

mod kubernetes;
mod serving_certificates;
mod set_up;

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use hyper::Request;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use test_api_server::{ApiServer, Caller, Listening, kubeconfig};
use tokio::{net::TcpListener, runtime::Runtime};

use crate::network_namespace::NetworkNamespace;

pub use kubernetes::Programs;

use kubernetes::Kubernetes;

/// The address of the API server, on the loopback of its network namespace.
const ADDRESS: &str = "127.0.0.1:6443";

/// The bootstrap token of new nodes.
const TOKEN: &str = "abcdef.0123456789abcdef";

/// The group of kubeadm's bootstrap tokens.
const BOOTSTRAPPERS: &str = "system:bootstrappers:kubeadm:default-node-token";

/// A control plane in a network namespace: the API server, the scheduler, and the signing and
/// approval of certificates. It stops when this is dropped.
pub struct ControlPlane {
    server: Server,
    admin: Client,
    threads: Threads,
}

enum Server {
    /// The API server of the tests.
    Double {
        api: ApiServer,
        _listening: Listening,
    },
    /// The Kubernetes servers.
    Kubernetes(Box<Kubernetes>),
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane").finish_non_exhaustive()
    }
}

/// A runtime whose threads are in the network namespace.
struct Threads(Option<Runtime>);

impl Threads {
    /// Runs a future on these threads.
    async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let runtime = self.0.as_ref().context("the threads have ended")?;
        Ok(runtime.spawn(future).await?)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Blocking on the shutdown is not allowed inside the test's own runtime.
            runtime.shutdown_background();
        }
    }
}

impl ControlPlane {
    /// The API server of the tests, with its scheduler.
    pub async fn double(namespace: &NetworkNamespace) -> Result<Self> {
        let threads = Threads(Some(namespace.runtime()?));
        let serving = async {
            let api = ApiServer::start().map_err(|error| anyhow!("{error:?}"))?;
            let listening = api.listen_on(TcpListener::bind(ADDRESS).await?)?;
            Ok::<_, anyhow::Error>((api, listening))
        };
        let (api, listening) = threads.run(serving).await??;
        let bootstrapper = Caller::new(
            "system:bootstrap:abcdef",
            &["system:bootstrappers", BOOTSTRAPPERS],
        );
        api.with_policy(|policy| policy.add_token(TOKEN, bootstrapper));
        api.run_scheduler(true);
        api.mount_tokens(true);
        api.verify_kubelets(Some(&api.authority_pem()));
        let server = Server::Double {
            api,
            _listening: listening,
        };
        let admin = client(&threads, kubeconfig(&server, &Caller::admin())?).await?;
        Ok(Self {
            server,
            admin,
            threads,
        })
    }

    /// The Kubernetes servers, set up like kubeadm does: the node authorizer and RBAC decide what
    /// nodes may do. Their data and logs are in `directory`.
    pub async fn kubernetes(
        namespace: &NetworkNamespace,
        directory: &Path,
        programs: &Programs,
    ) -> Result<Self> {
        let threads = Threads(Some(namespace.runtime()?));
        let kubernetes = Kubernetes::new(programs, directory, namespace.pid())?;
        let server = Server::Kubernetes(Box::new(kubernetes));
        let admin = client(&threads, kubeconfig(&server, &Caller::admin())?).await?;
        let plane = Self {
            server,
            admin,
            threads,
        };
        plane.set_available(true).await?;
        let asked = plane.admin.clone();
        plane.threads.run(set_up::cluster(asked)).await??;
        let asked = plane.admin.clone();
        let approving = plane.threads.0.as_ref().context("no threads")?;
        approving.spawn(serving_certificates::approve(asked));
        Ok(plane)
    }

    /// Whether it serves the usage of nodes and pods (`metrics.k8s.io`). Real clusters need a
    /// metrics server for that.
    pub const fn has_metrics(&self) -> bool {
        matches!(self.server, Server::Double { .. })
    }

    /// Whether it runs controllers, which bind and attach volumes, among others.
    pub const fn has_controllers(&self) -> bool {
        matches!(self.server, Server::Kubernetes(_))
    }

    /// A kubeconfig for a caller with a client certificate.
    pub fn kubeconfig(&self, caller: &Caller) -> Result<String> {
        kubeconfig(&self.server, caller)
    }

    /// A kubeconfig with a bootstrap token, for a new node.
    pub fn bootstrap_kubeconfig(&self) -> String {
        kubeconfig::with_token(ADDRESS, &self.authority_pem(), TOKEN)
    }

    /// The certificate of the cluster's certificate authority, in PEM.
    pub fn authority_pem(&self) -> String {
        match &self.server {
            Server::Double { api, .. } => api.authority_pem(),
            Server::Kubernetes(kubernetes) => kubernetes.authority_pem(),
        }
    }

    /// A client for a kubeconfig. Its requests must be sent with [`Self::send`].
    pub async fn client(&self, kubeconfig: String) -> Result<Client> {
        client(&self.threads, kubeconfig).await
    }

    /// Sends a request in the control plane's network namespace. Returns the status code and the
    /// body, as JSON or, if it is not JSON, as a string.
    pub async fn send(&self, client: &Client, request: Request<Body>) -> Result<(u16, Value)> {
        let client = client.clone();
        self.threads.run(send(client, request)).await?
    }

    /// The object at this path, read as the administrator; null if it does not exist.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let request = Request::get(path).body(Body::empty())?;
        match self.send(&self.admin, request).await? {
            (200, object) => Ok(object),
            (404, _) => Ok(Value::Null),
            (code, answer) => bail!("GET {path}: {code}: {answer}"),
        }
    }

    /// Sets whether the API server is available. While it is not, open connections break and new
    /// ones are refused; its data is kept. Returns once the change is complete.
    pub async fn set_available(&self, available: bool) -> Result<()> {
        match &self.server {
            Server::Double { api, .. } => api.set_available(available),
            Server::Kubernetes(kubernetes) if available => {
                kubernetes.start(async || self.get("/readyz").await).await?;
            }
            Server::Kubernetes(kubernetes) => kubernetes.stop()?,
        }
        Ok(())
    }

    /// Makes the API server forget all changes up to now, as a restart does: a watch from an older
    /// revision expires.
    pub async fn forget_changes(&self) -> Result<()> {
        if let Server::Double { api, .. } = &self.server {
            api.compact();
            return Ok(());
        }
        self.set_available(false).await?;
        self.set_available(true).await
    }
}

fn kubeconfig(server: &Server, caller: &Caller) -> Result<String> {
    match server {
        Server::Double { api, .. } => {
            let identity = api.identity(caller).map_err(|error| anyhow!("{error:?}"))?;
            let authority = api.authority_pem();
            Ok(kubeconfig::with_certificate(ADDRESS, &authority, &identity))
        }
        Server::Kubernetes(kubernetes) => kubernetes.kubeconfig(caller),
    }
}

/// A client whose connections are opened on these threads.
async fn client(threads: &Threads, kubeconfig: String) -> Result<Client> {
    let making = async move {
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok::<_, anyhow::Error>(Client::try_from(config)?)
    };
    threads.run(making).await?
}

async fn send(client: Client, request: Request<Body>) -> Result<(u16, Value)> {
    let answer = client.send(request).await?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    let body = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body)));
    Ok((code, body))
}
