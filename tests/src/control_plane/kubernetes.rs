//! The Kubernetes servers as processes: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler, on the loopback of a network namespace.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use parking_lot::Mutex;
use rcgen::KeyPair;
use serde_json::Value;
use test_api_server::{Authority, Caller, Clock, Identity, kubeconfig};
use test_run::{process::Process, skips};
use tokio::time::{Instant, sleep};

use super::ADDRESS;
use crate::network_namespace::NODE_IP;

/// The deadline for the API server to become ready after its start.
const STARTUP: Duration = Duration::from_secs(120);

/// The lifetime of client certificates, which is longer than any test.
const LASTS: Duration = Duration::from_secs(24 * 3600);

/// The environment variable that names the directory of the Kubernetes servers.
const VARIABLE: &str = "KUBERNETES_SERVER_BIN";

const ETCD: &str = "etcd";
const API_SERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

const ETCD_CLIENTS: &str = "http://127.0.0.1:2379";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";

/// The directory of the Kubernetes servers.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

impl Programs {
    /// The servers in the directory that `KUBERNETES_SERVER_BIN` names. Returns `None` and
    /// [skips](skips::skip) `test` if the variable is not set.
    ///
    /// # Errors
    /// One of the servers is missing from the directory.
    pub fn at_hand(test: &str) -> Result<Option<Self>> {
        let all = [ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER];
        let Some(directory) = env::var_os(VARIABLE).map(PathBuf::from) else {
            let all = all.join(", ");
            skips::skip(test, &format!("{VARIABLE} names no directory with {all}"));
            return Ok(None);
        };
        for program in all {
            if !directory.join(program).is_file() {
                bail!("{VARIABLE}: no {program} in {}", directory.display());
            }
        }
        Ok(Some(Self(directory)))
    }
}

/// The running servers, and the configuration to start them.
pub(super) struct Kubernetes {
    programs: PathBuf,
    directory: PathBuf,
    netns: u32,
    authority: Authority,
    clock: Clock,
    /// In start order.
    running: Mutex<Vec<Process>>,
    _etcd: KillOnDrop,
}

/// A process that is killed on drop: its data need not survive.
struct KillOnDrop(Option<Process>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            let _ = process.kill();
        }
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl Kubernetes {
    /// Starts etcd, and creates the keys, certificates and kubeconfigs of the other servers.
    pub(super) fn new(programs: &Programs, directory: &Path, netns: u32) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let clock = Clock::new(None);
        let authority = Authority::new(&clock)?;
        let etcd = start_etcd(&programs.0, directory, netns)?;
        let this = Self {
            programs: programs.0.clone(),
            directory: directory.to_owned(),
            netns,
            authority,
            clock,
            running: Mutex::default(),
            _etcd: KillOnDrop(Some(etcd)),
        };
        this.write_identities()?;
        Ok(this)
    }

    fn write_identities(&self) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = self.directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let write_pair = |name: &str, pair: &Identity| {
            write(&format!("{name}.crt"), &pair.certificate)?;
            write(&format!("{name}.key"), &pair.key)
        };
        write("ca.crt", &self.authority.pem())?;
        write("ca.key", &self.authority.key_pem())?;
        let accounts = KeyPair::generate()?;
        write("accounts.key", &accounts.serialize_pem())?;
        write("accounts.pub", &accounts.public_key_pem())?;
        let node: IpAddr = NODE_IP.parse()?;
        let service = IpAddr::from([10, 96, 0, 1]);
        let addresses = [Ipv4Addr::LOCALHOST.into(), node, service];
        let names = ["localhost", "kubernetes", "kubernetes.default.svc"];
        let serving = self.authority.server(&self.clock, &addresses, &names)?;
        write_pair("apiserver", &serving)?;
        // Kubelets authorize it like any other client; `set_up` binds it to a role.
        let to_kubelets = Caller::new(super::set_up::KUBELET_CLIENT, &[]);
        write_pair("kubelet-client", &self.identity(&to_kubelets)?)?;
        for name in [CONTROLLER_MANAGER, SCHEDULER] {
            let caller = Caller::new(&format!("system:{name}"), &[]);
            write(&format!("{name}.conf"), &self.kubeconfig(&caller)?)?;
        }
        Ok(())
    }

    fn identity(&self, caller: &Caller) -> Result<Identity> {
        let identity = self.authority.client(&self.clock, caller, LASTS);
        identity.map_err(|error| anyhow!("{error:?}"))
    }

    /// A kubeconfig for a caller with a client certificate.
    pub(super) fn kubeconfig(&self, caller: &Caller) -> Result<String> {
        let identity = self.identity(caller)?;
        let authority = self.authority.pem();
        Ok(kubeconfig::with_certificate(ADDRESS, &authority, &identity))
    }

    /// The certificate of the certificate authority, in PEM.
    pub(super) fn authority_pem(&self) -> String {
        self.authority.pem()
    }

    /// Starts the API server and, once `readyz` reports that it is ready, its clients: the
    /// controller manager and the scheduler.
    pub(super) async fn start(&self, readyz: impl AsyncFn() -> Result<Value>) -> Result<()> {
        let mut api_server = self.run(API_SERVER, &self.api_server_flags())?;
        let deadline = Instant::now() + STARTUP;
        while readyz().await.ok() != Some(Value::from("ok")) {
            api_server.check_runs()?;
            if Instant::now() > deadline {
                bail!("the API server is not ready:\n{}", api_server.output());
            }
            sleep(Duration::from_millis(100)).await;
        }
        let controllers = self.run(CONTROLLER_MANAGER, &self.controller_manager_flags())?;
        let scheduler = self.run(SCHEDULER, &self.client_flags(SCHEDULER))?;
        self.running
            .lock()
            .extend([api_server, controllers, scheduler]);
        Ok(())
    }

    /// `kill -9` of every server but etcd. The controller manager and the scheduler end with the
    /// API server.
    pub(super) fn stop(&self) -> Result<()> {
        let running = std::mem::take(&mut *self.running.lock());
        running.into_iter().rev().try_for_each(Process::kill)
    }

    fn run(&self, program: &str, flags: &[String]) -> Result<Process> {
        start(
            &self.programs,
            program,
            self.netns,
            flags,
            &self.directory.join(format!("{program}.log")),
        )
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn api_server_flags(&self) -> Vec<String> {
        let (host, port) = ADDRESS.split_once(':').unwrap_or_default();
        let files = [
            ("tls-cert-file", "apiserver.crt"),
            ("tls-private-key-file", "apiserver.key"),
            ("client-ca-file", "ca.crt"),
            ("service-account-key-file", "accounts.pub"),
            ("service-account-signing-key-file", "accounts.key"),
            ("kubelet-client-certificate", "kubelet-client.crt"),
            ("kubelet-client-key", "kubelet-client.key"),
            ("kubelet-certificate-authority", "ca.crt"),
        ];
        let values = [
            ("bind-address", host),
            ("secure-port", port),
            // The endpoint of the `kubernetes` service, which must not be a loopback address.
            ("advertise-address", NODE_IP),
            ("etcd-servers", ETCD_CLIENTS),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("enable-bootstrap-token-auth", "true"),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc.cluster.local",
            ),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            ("kubelet-preferred-address-types", "InternalIP"),
            ("allow-privileged", "true"),
            // Off by default up to 1.36.
            (
                "feature-gates",
                "ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
            ),
            (
                "runtime-config",
                "certificates.k8s.io/v1beta1/clustertrustbundles=true",
            ),
        ];
        let files = files.map(|(flag, file)| format!("--{flag}={}", self.path(file)));
        let values = values.map(|(flag, value)| format!("--{flag}={value}"));
        files.into_iter().chain(values).collect()
    }

    fn controller_manager_flags(&self) -> Vec<String> {
        let files = [
            ("root-ca-file", "ca.crt"),
            ("cluster-signing-cert-file", "ca.crt"),
            ("cluster-signing-key-file", "ca.key"),
            ("service-account-private-key-file", "accounts.key"),
        ];
        let mut flags = self.client_flags(CONTROLLER_MANAGER);
        flags.extend(files.map(|(flag, file)| format!("--{flag}={}", self.path(file))));
        flags.push("--use-service-account-credentials=true".to_owned());
        flags
    }

    /// The flags that the clients of the API server share.
    fn client_flags(&self, program: &str) -> Vec<String> {
        let kubeconfig = self.path(&format!("{program}.conf"));
        vec![
            format!("--kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ]
    }
}

fn start_etcd(programs: &Path, directory: &Path, netns: u32) -> Result<Process> {
    let data = directory.join("etcd").display().to_string();
    let flags = [
        "--unsafe-no-fsync".to_owned(),
        format!("--data-dir={data}"),
        format!("--listen-client-urls={ETCD_CLIENTS}"),
        format!("--advertise-client-urls={ETCD_CLIENTS}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
        format!("--initial-cluster=default={ETCD_PEERS}"),
    ];
    let log = directory.join("etcd.log");
    start(programs, ETCD, netns, &flags, &log)
}

fn start(
    programs: &Path,
    program: &str,
    netns: u32,
    flags: &[String],
    log: &Path,
) -> Result<Process> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Process::start(program, Some(netns), &programs.join(program), &flags, log)
}
