//! Follows what changes by itself: the configuration directory, the plugins' status, and
//! sandboxes that are removed by others.

use std::{
    ffi::OsString, fs, io, os::unix::fs::MetadataExt as _, path::Path, sync::Arc, time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Cni,
    config::{self, NetworkConfig},
    version::Version,
};
use crate::model::Model;

/// How often the configuration directory is looked at.
const POLL: Duration = Duration::from_secs(2);
/// How often the plugins are asked for their status.
const STATUS: Duration = Duration::from_secs(10);
/// How often attachments of sandboxes that are gone are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// How often it is looked whether the engine's sandboxes are known.
const AWAIT_SYNC: Duration = Duration::from_millis(200);

/// What was in the configuration directory.
#[derive(Debug)]
pub(super) struct Loaded {
    fingerprint: Option<Fingerprint>,
    /// The network, or why there is none.
    pub(super) network: Result<Arc<NetworkConfig>, String>,
}

/// Changes with the files of the directory: names, inodes, sizes, times of change.
type Fingerprint = Vec<(OsString, u64, u64, (i64, i64))>;

impl Default for Loaded {
    fn default() -> Self {
        Self {
            fingerprint: None,
            network: Err("not read yet".into()),
        }
    }
}

impl Cni {
    /// Follows what changes until `stop`.
    pub async fn run(self: Arc<Self>, model: Arc<Model>, stop: CancellationToken) {
        let work = async {
            tokio::join!(self.poll(), self.ask_status(), self.sweep_gone(&model));
        };
        stop.run_until_cancelled(work).await;
    }

    async fn poll(&self) {
        loop {
            tokio::time::sleep(POLL).await;
            self.reload();
        }
    }

    async fn ask_status(&self) {
        loop {
            let network = self.loaded.load().network.clone();
            let answer = match &network {
                Ok(network) => self.chain(network).status().await,
                Err(_) => Ok(()),
            };
            let problem = answer.err().map(|error| error.to_string());
            if **self.problem.load() != problem {
                match &problem {
                    Some(problem) => tracing::warn!(problem, "the pod network is not ready"),
                    None => tracing::info!("the pod network is ready again"),
                }
                self.problem.store(Arc::new(problem));
            }
            // What it said of a configuration that is out of use says nothing of the next.
            let _ = tokio::time::timeout(STATUS, self.reloaded.notified()).await;
        }
    }

    async fn sweep_gone(&self, model: &Model) {
        while !model.synced() {
            tokio::time::sleep(AWAIT_SYNC).await;
        }
        self.sweep(model).await;
        self.collect_garbage().await;
        loop {
            tokio::time::sleep(SWEEP).await;
            self.sweep(model).await;
        }
    }

    /// Reads the configuration directory if it has changed. Blocks, for a few looks at
    /// files otherwise.
    pub(super) fn reload(&self) {
        let _one_at_a_time = self.reloading.lock();
        let fingerprint = fingerprint(&self.conf_dir).ok();
        let before = self.loaded.load();
        if fingerprint.is_some() && before.fingerprint == fingerprint {
            return;
        }
        let network = self.read();
        match &network {
            Ok(new) if before.network.as_ref() != Ok(new) => {
                // Until its plugins have said that they are ready, they are not.
                let asked = new.version >= Version::STATUS;
                let unknown = || format!("STATUS of network {:?} is being asked", new.name);
                self.problem.store(Arc::new(asked.then(unknown)));
            }
            Err(why) if before.network.as_ref() != Err(why) => {
                tracing::warn!(why, "no pod network");
            }
            _ => {}
        }
        self.loaded.store(Arc::new(Loaded {
            fingerprint,
            network,
        }));
        self.reloaded.notify_one();
    }

    fn read(&self) -> Result<Arc<NetworkConfig>, String> {
        let directory = self.conf_dir.display();
        let mut broken = 0;
        let found = config::first_valid(&self.conf_dir, |file, error| {
            broken += 1;
            tracing::warn!(file = %file.display(), %error, "a CNI configuration is passed over");
        });
        match found {
            Ok(Some((file, network))) => {
                tracing::info!(file = %file.display(), network = network.name, "CNI configuration");
                Ok(Arc::new(network))
            }
            Ok(None) if broken > 0 => Err(format!("no valid CNI configuration in {directory}")),
            Ok(None) => Err(format!("no CNI configuration in {directory}")),
            Err(error) => Err(format!("cannot read {directory}: {error}")),
        }
    }
}

/// Of the files in `directory`, and of those one level below: there plugins may have files
/// of their own.
fn fingerprint(directory: &Path) -> io::Result<Fingerprint> {
    let mut found = Vec::new();
    add_to(&mut found, directory, true)?;
    found.sort();
    Ok(found)
}

fn add_to(found: &mut Fingerprint, directory: &Path, go_down: bool) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        // A link leads to what counts.
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if metadata.is_dir() && go_down {
            add_to(found, &path, false)?;
        }
        found.push((
            path.into_os_string(),
            metadata.ino(),
            metadata.size(),
            (metadata.mtime(), metadata.mtime_nsec()),
        ));
    }
    Ok(())
}
