//! A registry on loopback (Debian's docker-registry) in a node's network namespace, for image pulls
//! by tag, by digest and with basic authentication.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bollard::auth::DockerCredentials;
use test_run::process::Process;
use tokio::time::{Instant, sleep};

use crate::network_namespace::NetworkNamespace;

/// The user of a registry with authentication.
pub const USER: &str = "user";
/// The password of [`USER`].
pub const PASSWORD: &str = "secret";
/// The output of `htpasswd -B` for [`USER`] and [`PASSWORD`]: the registry accepts only bcrypt.
const HTPASSWD: &str = "user:$2b$04$qv.46q7sjKrXatl9dLw5BO1.p336BpJf/GXT.3i3ko3u/kDPJzTAe\n";

/// The deadline for the registry to listen.
const STARTUP: Duration = Duration::from_secs(60);

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    address: String,
    _process: Process,
}

impl Registry {
    /// Starts a registry on `port`, with its files under `dir`.
    pub async fn start(
        namespace: &NetworkNamespace,
        dir: &Path,
        port: u16,
        auth: bool,
    ) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let address = format!("127.0.0.1:{port}");
        let config = configure(dir, &address, auth)?;
        let mut process = Process::start(
            "docker-registry",
            Some(namespace.pid()),
            Path::new("docker-registry"),
            &["serve", &config.display().to_string()],
            &dir.join("registry.log"),
        )
        .context("tests need a registry: apt-get install docker-registry")?;
        let deadline = Instant::now() + STARTUP;
        while !namespace.listens(port)? {
            process.check_runs()?;
            if Instant::now() > deadline {
                bail!("the registry does not listen:\n{}", process.output());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Self {
            address,
            _process: process,
        })
    }

    /// A reference to an image in this registry; `name` is `name:tag`.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// The credentials for a registry with authentication.
    pub fn credentials(&self) -> DockerCredentials {
        DockerCredentials {
            username: Some(USER.to_owned()),
            password: Some(PASSWORD.to_owned()),
            serveraddress: Some(self.address.clone()),
            ..DockerCredentials::default()
        }
    }
}

fn configure(dir: &Path, address: &str, auth: bool) -> Result<PathBuf> {
    let htpasswd = dir.join("htpasswd");
    fs::write(&htpasswd, HTPASSWD)?;
    let auth = if auth {
        format!(
            "auth: {{htpasswd: {{realm: e2e, path: {}}}}}\n",
            htpasswd.display()
        )
    } else {
        String::new()
    };
    let config = dir.join("config.yml");
    let text = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n{auth}",
        dir.join("data").display()
    );
    fs::write(&config, text)?;
    Ok(config)
}
