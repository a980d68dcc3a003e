//! A kubelet without an engine, on a fake runtime.

use std::{fs, net::TcpListener, path::Path, process::Command, time::Duration};

use e2e::node::binary;
use fake_runtime::{FakeRuntime, Serving};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use test_run::{mounts::MountDir, process::Process};
use tokio::time::{sleep, timeout};

const STARTUP: Duration = Duration::from_secs(60);

/// The kubelet; it stops when dropped.
pub(crate) struct LoneKubelet {
    process: Process,
    pub runtime: FakeRuntime,
    _serving: Serving,
    pub dir: MountDir,
    /// Its secure port on 127.0.0.1.
    pub port: u16,
}

impl LoneKubelet {
    /// Starts a kubelet with a limit of `files` open files and additional configuration fields.
    /// Returns once it serves clients with a certificate.
    pub(crate) async fn start(files: u64, fields: &str) -> Self {
        let dir = MountDir::new().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("manifests")).unwrap();
        write_client(dir.path());
        let runtime = FakeRuntime::new();
        let serving = runtime.serve(&path("cri.sock")).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let show = |name: &str| path(name).display().to_string();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             containerRuntimeEndpoint: unix://{}\nstaticPodPath: {}\npodLogsDir: {}\n\
             address: 127.0.0.1\nport: {port}\nhealthzPort: 0\nmaxOpenFiles: {files}\n\
             authentication: {{x509: {{clientCAFile: {}}}}}\n\
             authorization: {{mode: AlwaysAllow}}\n{fields}",
            show("cri.sock"),
            show("manifests"),
            show("logs"),
            show("ca.crt"),
        );
        fs::write(path("kubelet.yaml"), config).unwrap();
        let binary = binary("kubelet").unwrap();
        let args = [
            &format!("--nofile={files}:{files}"),
            "--",
            binary.to_str().unwrap(),
            &format!("--config={}", show("kubelet.yaml")),
            &format!("--root-dir={}", show("root")),
            &format!("--container-logs-dir={}", show("links")),
            "--hostname-override=node-1",
            "--set-kernel-tunables=false",
            // The runtime starts no processes.
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=none",
        ];
        let log = path("kubelet.log");
        let process = Process::start("kubelet", None, Path::new("prlimit"), &args, &log).unwrap();
        let kubelet = Self {
            process,
            runtime,
            _serving: serving,
            dir,
            port,
        };
        let serves = async {
            while kubelet.get("/healthz").await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        if timeout(STARTUP, serves).await.is_err() {
            panic!("it does not serve: {}", kubelet.process.output());
        }
        kubelet
    }

    /// A response from the secure port to a client with a certificate, within five seconds.
    pub(crate) async fn get(&self, path: &str) -> Result<String, String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--insecure"]);
        curl.args([
            "--max-time",
            "5",
            "--cert",
            "client.crt",
            "--key",
            "client.key",
        ]);
        curl.arg(format!("https://127.0.0.1:{}{path}", self.port));
        curl.current_dir(self.dir.path());
        let output = tokio::task::spawn_blocking(move || curl.output());
        let output = output.await.unwrap().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The number of its open files.
    pub(crate) fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.process.pid());
        fs::read_dir(path).unwrap().count()
    }

    /// Its peak memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.pid());
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.unwrap().split_whitespace().next().unwrap();
        kib.parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn log(&self) -> String {
        self.process.output()
    }
}

/// Writes a client's certificate and key, and its CA certificate.
fn write_client(dir: &Path) {
    let named = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let mut authority = named("clients");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    fs::write(dir.join("ca.crt"), pem).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let client = named("admin").signed_by(&key, &issuer).unwrap();
    fs::write(dir.join("client.crt"), client.pem()).unwrap();
    fs::write(dir.join("client.key"), key.serialize_pem()).unwrap();
}
