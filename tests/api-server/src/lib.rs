//! A small API server, for tests without a real one.
//!
//! It keeps objects in memory and behaves like a kube-apiserver in all that a kubelet or `kubectl`
//! can observe: resource versions, watches, patches, graceful deletion, and upstream's reasons and
//! messages for errors. It is a test double: the test `real_api_server` compares it with a real
//! kube-apiserver if one is available.
//!
//! Tests in the same process use [`ApiServer::client`], which needs no socket and therefore works
//! on tokio's paused time. [`ApiServer::listen`] serves TLS on a socket.

#![forbid(unsafe_code)]

pub mod by_path;
mod clock;
mod connections;
mod deletion;
mod discovery;
mod errors;
mod event_versions;
mod handler;
mod http;
pub mod kubeconfig;
mod lists;
mod metrics;
mod node_authorizer;
mod node_proxy;
mod openapi;
mod patch;
mod pods;
mod policy;
mod protobuf;
mod quantities;
mod request;
mod resources;
mod reviews;
mod scheduler;
mod selectors;
mod signing;
mod storage;
mod strategy;
mod tables;
mod tokens;
mod verbs;
mod watch;

use std::{io, sync::Arc, time::Duration};

use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch::Sender};
use tower::service_fn;

pub use clock::Clock;
pub use connections::Listening;
pub use errors::{ApiError, Cause};
pub use patch::strategic::merge;
pub use policy::{Attributes, Policy};
pub use request::{Caller, Record};
pub use resources::Resource;
pub use signing::{Authority, Identity};

use request::Target;
use storage::{Key, Storage};
use watch::Interruptions;

/// A test's decision about a request, before the server handles it.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The request is handled.
    Pass,
    /// The request is handled after this delay.
    Delay(Duration),
    /// The request fails with this error.
    Refuse(ApiError),
    /// The connection breaks.
    Break,
    /// The request is handled, but the connection breaks before the response.
    Lose,
}

/// A function that decides about each request.
pub type Interceptor = dyn Fn(&Record) -> Verdict + Send + Sync;

/// The API server. Clones share one store, which lives as long as the last clone.
#[derive(Clone)]
pub struct ApiServer(Arc<Server>);

/// The state of an [`ApiServer`].
struct Server {
    storage: Mutex<Storage>,
    /// Wakes watches in the order in which they wait, so that simulations are reproducible.
    changed: Notify,
    /// The reference count is one more than the number of watches.
    watching: Arc<()>,
    interruptions: Sender<Interruptions>,
    clock: Clock,
    records: Mutex<Vec<Record>>,
    refusals: Mutex<Vec<String>>,
    measured: Mutex<metrics::MeasurementsByNode>,
    settings: Mutex<Settings>,
    authority: Authority,
}

struct Settings {
    available: bool,
    interceptor: Option<Arc<Interceptor>>,
    schedule: bool,
    kubelet_authority: Option<String>,
    approve: bool,
    mount_tokens: bool,
    policy: Policy,
    /// In discovery order.
    served: Vec<&'static Resource>,
}

impl ApiServer {
    /// A server with the namespaces, service accounts and the `kubernetes` service of every
    /// cluster. It uses tokio's clock, so it must be created inside a tokio runtime. Its clock
    /// starts at the current time.
    pub fn start() -> Result<Self, ApiError> {
        Self::start_at(None)
    }

    /// [`Self::start`] with a clock that starts this long after the epoch.
    pub fn start_at(since_epoch: Option<Duration>) -> Result<Self, ApiError> {
        let clock = Clock::new(since_epoch);
        let authority = Authority::new(&clock).map_err(ApiError::internal)?;
        let server = Self(Arc::new(Server {
            storage: Mutex::default(),
            changed: Notify::new(),
            watching: Arc::default(),
            interruptions: Sender::new(Interruptions::default()),
            clock,
            records: Mutex::default(),
            refusals: Mutex::default(),
            measured: Mutex::default(),
            settings: Mutex::new(Settings {
                available: true,
                interceptor: None,
                schedule: false,
                kubelet_authority: None,
                approve: true,
                mount_tokens: false,
                policy: Policy::default(),
                served: resources::served_by_default(),
            }),
            authority,
        }));
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let named = json!({"metadata": {"name": namespace}});
            server.create("v1", "namespaces", "", named)?;
            let account = json!({"metadata": {"name": "default"}});
            server.create("v1", "serviceaccounts", namespace, account)?;
            let bundle = json!({
                "metadata": {"name": "kube-root-ca.crt"},
                "data": {"ca.crt": server.authority_pem()},
            });
            server.create("v1", "configmaps", namespace, bundle)?;
        }
        let service = json!({
            "metadata": {"name": "kubernetes",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
        });
        server.create("v1", "services", "default", service)?;
        Ok(server)
    }

    /// A client in this process, as `caller`. It has no socket and no TLS, so it depends on no
    /// other clock than tokio's.
    pub fn client(&self, caller: Caller) -> kube::Client {
        let server = Arc::clone(&self.0);
        let service = service_fn(move |request: hyper::Request<Body>| {
            let (server, caller) = (Arc::clone(&server), caller.clone());
            async move { server.handle(request, caller).await }
        });
        kube::Client::new(service, "default")
    }

    /// Creates an object as the administrator, with defaults and admission. `api_version` is `v1`
    /// or `group/version`; `namespace` is empty for cluster-scoped resources.
    pub fn create(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Value, ApiError> {
        let target = target(api_version, plural, namespace, None)?;
        let query = request::Query::default();
        self.0.create(&target, object, &query, &Caller::admin())
    }

    /// Creates or replaces an object as the administrator.
    pub fn put(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Value, ApiError> {
        let name = strategy::text(&object, "/metadata/name").to_owned();
        let target = target(api_version, plural, namespace, Some(&name))?;
        match self.0.get(&target) {
            Ok(_) => {
                let query = request::Query::default();
                self.0.update(&target, object, &query, &Caller::admin())
            }
            Err(error) if error.code == 404 => self.create(api_version, plural, namespace, object),
            Err(error) => Err(error),
        }
    }

    /// Creates an object like [`Self::create`], but keeps its UID.
    pub fn restore(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Value, ApiError> {
        let target = target(api_version, plural, namespace, None)?;
        self.0.restore(&target, object)
    }

    /// Edits an object without defaults, admission and validation.
    pub fn edit(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<Value, ApiError> {
        let target = target(api_version, plural, namespace, Some(name))?;
        self.0.edit(&target, edit)
    }

    /// Binds a pod to a node, as a scheduler does.
    pub fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<Value, ApiError> {
        let target = target("v1", "pods", namespace, Some(pod))?;
        self.0.bind(&target, &json!({"target": {"name": node}}))
    }

    /// The object as it is stored.
    pub fn get(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Value, ApiError> {
        self.0
            .get(&target(api_version, plural, namespace, Some(name))?)
    }

    /// The objects of a namespace; of all namespaces if `namespace` is empty.
    pub fn list(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let target = target(api_version, plural, namespace, None)?;
        let mut list = self.0.list(&target, &request::Query::default())?;
        let items = list["items"].as_array_mut();
        Ok(items.map(std::mem::take).unwrap_or_default())
    }

    /// Deletes an object as the administrator, with these options.
    pub fn delete(
        &self,
        api_version: &str,
        plural: &str,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<Value, ApiError> {
        let target = target(api_version, plural, namespace, Some(name))?;
        let options = deletion::DeleteOptions::read(options, &request::Query::default());
        self.0.delete(&target, &options)
    }

    /// The messages of all requests that authorization denied.
    pub fn refusals(&self) -> Vec<String> {
        self.0.refusals.lock().clone()
    }

    /// Enables or disables a version of a resource, like `--runtime-config` of a kube-apiserver.
    ///
    /// # Errors
    /// The resource does not exist in this version.
    pub fn serve(&self, api_version: &str, plural: &str, serve: bool) -> Result<(), ApiError> {
        let told = target(api_version, plural, "", None)?.resource;
        let served = &mut self.0.settings.lock().served;
        let all = resources::RESOURCES.iter();
        *served = all
            .filter(|one| {
                if *one == told {
                    serve
                } else {
                    served.contains(one)
                }
            })
            .collect();
        Ok(())
    }

    /// The number of open watches.
    pub fn watches(&self) -> usize {
        Arc::strong_count(&self.0.watching) - 1
    }

    /// The revision of the latest change.
    pub fn revision(&self) -> u64 {
        self.0.storage.lock().revision()
    }

    /// Discards all changes up to now: a watch from an older revision expires (410).
    pub fn compact(&self) {
        self.0.storage.lock().compact();
    }

    /// Ends all watches cleanly, as after their timeout.
    pub fn end_watches(&self) {
        self.0.interrupt(|interruptions| interruptions.ended += 1);
    }

    /// Sets whether the server is available. While it is not, open connections break and new ones
    /// are refused; its data is kept.
    pub fn set_available(&self, available: bool) {
        self.0.settings.lock().available = available;
        if !available {
            self.0.interrupt(|interruptions| interruptions.broken += 1);
        }
    }

    /// Sets the interceptor that decides about every request; `None` lets all pass.
    pub fn intercept(&self, interceptor: Option<Arc<Interceptor>>) {
        self.0.settings.lock().interceptor = interceptor;
    }

    /// Turns the scheduler on or off; it is off by default. It binds each pod without a node to a
    /// ready and schedulable node whose taints the pod tolerates and which the pod selects, as soon
    /// as there is one. It also taints nodes by their conditions and when they are cordoned.
    pub fn run_scheduler(&self, run: bool) {
        self.0.settings.lock().schedule = run;
        let mut storage = self.0.storage.lock();
        if run {
            self.0.schedule(&mut storage);
        }
        self.0.publish();
    }

    /// Sets the certificate authority (PEM) that must have signed the serving certificates of
    /// kubelets. With `None`, the default, they are not verified.
    pub fn verify_kubelets(&self, authority: Option<&str>) {
        self.0.settings.lock().kubelet_authority = authority.map(str::to_owned);
    }

    /// Sets whether certificate signing requests of kubelets are approved automatically; by default
    /// they are.
    pub fn approve_certificates(&self, approve: bool) {
        self.0.settings.lock().approve = approve;
    }

    /// Sets whether new pods get a volume with the token of their service account, as on a real
    /// server; by default they do not.
    pub fn mount_tokens(&self, mount: bool) {
        self.0.settings.lock().mount_tokens = mount;
    }

    /// Changes the policy, which decides who is known and who may do what.
    pub fn with_policy<T>(&self, change: impl FnOnce(&mut Policy) -> T) -> T {
        change(&mut self.0.settings.lock().policy)
    }

    /// Every request so far, in order.
    pub fn requests(&self) -> Vec<Record> {
        self.0.records.lock().clone()
    }

    /// The number of requests with this verb and resource (`pods`, `pods/status`).
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let records = self.0.records.lock();
        records
            .iter()
            .filter(|record| record.verb == verb && record.resource == resource)
            .count()
    }

    /// Clears the recorded requests.
    pub fn forget_requests(&self) {
        self.0.records.lock().clear();
    }

    /// The certificate, in PEM, of the authority that signs the certificates of the server and its
    /// clients.
    pub fn authority_pem(&self) -> String {
        self.0.authority.pem()
    }

    /// A client certificate for `caller`, signed by the cluster's authority. It can name one group
    /// besides `system:authenticated`.
    pub fn identity(&self, caller: &Caller) -> Result<Identity, ApiError> {
        let lasts = Duration::from_secs(24 * 3600);
        self.0.authority.client(&self.0.clock, caller, lasts)
    }
}

impl Server {
    /// Notifies watches of changes.
    fn publish(&self) {
        self.changed.notify_waiters();
    }

    fn interrupt(&self, change: impl FnOnce(&mut Interruptions)) {
        self.interruptions.send_modify(change);
        self.changed.notify_waiters();
    }

    /// Applies admission to a new object.
    fn admit(
        &self,
        storage: &Storage,
        resource: &'static Resource,
        namespace: &str,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        if resource.kind != "Pod" {
            return Ok(());
        }
        let annotations = &object["metadata"]["annotations"];
        if !annotations["kubernetes.io/config.mirror"].is_string() {
            let mount = self.settings.lock().mount_tokens;
            tokens::admit_pod(storage, namespace, object, &self.clock, mount)?;
        }
        Ok(())
    }

    /// Runs the controllers after a write.
    fn after_write(&self, storage: &mut Storage, resource: &'static Resource, key: &Key) {
        if resource.kind == "CertificateSigningRequest" {
            let approve = self.settings.lock().approve;
            signing::follow(storage, key, &self.authority, &self.clock, approve);
        }
        if matches!(resource.kind, "Pod" | "Node") {
            let schedule = self.settings.lock().schedule;
            if schedule {
                self.schedule(storage);
            }
        }
        if !key.namespace.is_empty() {
            self.finish_namespace(storage, &key.namespace);
        }
    }

    /// Fails if the server is unavailable.
    fn check_available(&self) -> io::Result<()> {
        if self.settings.lock().available {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                "the API server is away",
            ))
        }
    }
}

/// The target for the arguments of a test.
fn target(
    api_version: &str,
    plural: &str,
    namespace: &str,
    name: Option<&str>,
) -> Result<Target, ApiError> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = resources::find(group, version, plural).ok_or_else(ApiError::no_such_path)?;
    Ok(Target {
        resource,
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        name: name.map(str::to_owned),
        subresource: String::new(),
    })
}
