//! The network's configuration directory and plugins. They are read on blocking threads; everything
//! else uses the last result.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, Notify};

use super::{
    config::{self, NetworkConfig},
    plugin::Plugins,
    version::Version,
};

/// How long to wait for a read.
const PATIENCE: Duration = Duration::from_secs(5);

/// The configuration directory and the plugins.
#[derive(Debug)]
pub(super) struct ConfigLoader {
    conf_dir: PathBuf,
    pub(super) plugins: Plugins,
    loaded: ArcSwap<Loaded>,
    /// Held during a read.
    reloading: Arc<Mutex<()>>,
    /// Wakes the status task when the configuration has changed.
    pub(super) reloaded: Notify,
    /// The last problem reported by the plugins' `STATUS`, if any.
    problem: ArcSwap<Option<String>>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) struct Loaded {
    fingerprint: Option<Fingerprint>,
    /// The network, or why there is none.
    pub(super) network: Result<Arc<NetworkConfig>, String>,
    /// Describes the first plugin that is not installed, if any.
    pub(super) missing: Option<String>,
}

/// The directory's files: names, inodes, sizes and modification times.
type Fingerprint = Vec<(OsString, u64, u64, (i64, i64))>;

// === impl ConfigLoader ===

impl ConfigLoader {
    /// Creates a loader that has not read anything yet.
    pub(super) fn new(conf_dir: PathBuf, plugins: Plugins) -> Self {
        let loaded = Loaded {
            fingerprint: None,
            network: Err("not read yet".into()),
            missing: None,
        };
        Self {
            conf_dir,
            plugins,
            loaded: ArcSwap::from_pointee(loaded),
            reloading: Arc::default(),
            reloaded: Notify::new(),
            problem: ArcSwap::default(),
        }
    }

    /// The result of the last read.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// The last problem reported by the plugins' `STATUS`, if any.
    pub(super) fn problem(&self) -> Arc<Option<String>> {
        self.problem.load_full()
    }

    /// Sets the problem reported by the plugins' `STATUS`, if any.
    pub(super) fn set_problem(&self, problem: Option<String>) {
        if **self.problem.load() == problem {
            return;
        }
        match &problem {
            Some(problem) => tracing::warn!(problem, "the pod network is not ready"),
            None => tracing::info!("the pod network is ready again"),
        }
        self.problem.store(Arc::new(problem));
    }

    /// Reads again on a blocking thread, one read at a time. Returns the previous result if that
    /// takes too long.
    pub(super) async fn refresh(self: &Arc<Self>) -> Arc<Loaded> {
        let reload = async {
            let one_at_a_time = Arc::clone(&self.reloading).lock_owned().await;
            let this = Arc::clone(self);
            let task = tokio::task::spawn_blocking(move || {
                this.reload();
                drop(one_at_a_time);
            });
            // A panic is a bug and has been logged.
            let _ = task.await;
        };
        let _ = tokio::time::timeout(PATIENCE, reload).await;
        self.loaded()
    }

    /// Reads the configuration directory if it has changed, and checks whether the plugins are
    /// installed. Blocks; only one read at a time.
    pub(super) fn reload(&self) {
        let fingerprint = fingerprint(&self.conf_dir).ok();
        let before = self.loaded.load();
        let unchanged = fingerprint.is_some() && before.fingerprint == fingerprint;
        let network = if unchanged {
            before.network.clone()
        } else {
            self.read()
        };
        let missing = network.as_ref().ok().and_then(|n| self.missing(n));
        if unchanged && before.missing == missing {
            return;
        }
        match &network {
            Ok(new) if before.network.as_ref() != Ok(new) => {
                // Not ready until the plugins have reported their status.
                let asked = new.version >= Version::STATUS;
                let unknown = || format!("waiting for STATUS of network {:?}", new.name);
                self.problem.store(Arc::new(asked.then(unknown)));
            }
            Err(why) if before.network.as_ref() != Err(why) => {
                tracing::warn!(why, "cannot load the pod network");
            }
            _ => {}
        }
        self.loaded.store(Arc::new(Loaded {
            fingerprint,
            network,
            missing,
        }));
        if !unchanged {
            self.reloaded.notify_one();
        }
    }

    fn missing(&self, network: &NetworkConfig) -> Option<String> {
        network.plugins.iter().find_map(|plugin| {
            let why = self.plugins.look_up(&plugin.kind).err()?;
            let (name, kind) = (&network.name, &plugin.kind);
            Some(format!("plugin {kind:?} of network {name:?} {why}"))
        })
    }

    fn read(&self) -> Result<Arc<NetworkConfig>, String> {
        let directory = self.conf_dir.display();
        let mut broken = 0;
        let found = config::first_valid(&self.conf_dir, |file, error| {
            broken += 1;
            tracing::warn!(file = %file.display(), %error, "skipping an invalid CNI configuration");
        });
        match found {
            Ok(Some((file, network))) => {
                tracing::info!(
                    file = %file.display(),
                    network = network.name,
                    "loaded the CNI configuration"
                );
                Ok(Arc::new(network))
            }
            Ok(None) if broken > 0 => Err(format!("no valid CNI configuration in {directory}")),
            Ok(None) => Err(format!("no CNI configuration in {directory}")),
            Err(error) => Err(format!("cannot read {directory}: {error}")),
        }
    }
}

/// The fingerprint of the files in `directory` and one level below, where plugin configurations may
/// be.
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
        // Symlinks are followed.
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
