//! The device manager of a node.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cri_proto::deviceplugin::v1beta1::ListAndWatchResponse;
use kubelet_host::{
    saver::{Saver, Snapshot},
    state_file::InvalidState,
};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::identity::PodUid;
use kubelet_topology_manager::NodeMask;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    checkpoint::{Checkpoint, FILE},
    device::DevicesPerNode,
    error::{DeviceError, PreferenceRequest},
    ledger::{Ledger, PluginState, Resource},
    metrics::Metrics,
    plugin::DevicePlugin,
    response::ContainerDevices,
};

/// A file longer than this is damaged: a node has at most a few hundred containers with devices.
const LONGEST: u64 = 64 << 20;
/// How long [`DeviceManager::plugins_changed`] waits at most: time alone ends some waits.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Amounts of devices by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCapacity {
    /// All devices; 0 for a resource whose plugin has been gone for long.
    pub capacity: BTreeMap<String, usize>,
    /// Those that are healthy.
    pub allocatable: BTreeMap<String, usize>,
}

/// Knows the device plugins of the node, and which container has which devices.
#[derive(Clone, Debug)]
pub struct DeviceManager(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    ledger: Mutex<Ledger>,
    saver: Saver,
    /// Whether there was no file, and the node's status was not corrected since.
    unrecorded: AtomicBool,
    /// Grows when a plugin registers, reports its devices, or is gone.
    plugins: watch::Sender<u64>,
    /// Pods with a device whose health has changed.
    changed_pods: Mutex<BTreeSet<String>>,
    health_changed: Notify,
    pub(crate) metrics: Metrics,
    pub(crate) cancel: CancellationToken,
}

impl DeviceManager {
    /// The manager with what containers have by the file in `dir`, on a machine with these NUMA nodes.
    /// A file that cannot be used is kept beside. Blocks.
    pub fn start(dir: &Path, nodes: NodeMask) -> Self {
        let path = dir.join(FILE);
        let found = read(&path);
        let unrecorded = matches!(found, Ok(None));
        let checkpoint = found.map(Option::unwrap_or_default).unwrap_or_else(|error| {
            let kept = path.with_extension("damaged");
            let renamed = fs::rename(&path, &kept);
            warn!(
                path = %path.display(), %error, kept = %kept.display(),
                rename_error = renamed.err().map(tracing::field::display),
                "cannot use the file that tells which containers have which devices: their devices \
                 may be given to others; drain the node"
            );
            Checkpoint::default()
        });
        Self(Arc::new(Shared {
            dir: dir.to_owned(),
            ledger: Mutex::new(Ledger::new(checkpoint, nodes)),
            saver: Saver::new(1),
            unrecorded: AtomicBool::new(unrecorded),
            plugins: watch::Sender::new(0),
            changed_pods: Mutex::default(),
            health_changed: Notify::new(),
            metrics: Metrics::default(),
            cancel: CancellationToken::new(),
        }))
    }

    /// What plugins offer, and what containers have of it.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.ledger.lock()
    }

    /// Asks a plugin which devices it prefers.
    ///
    /// # Errors
    /// The plugin is gone, or refuses.
    pub async fn preferred(
        &self,
        request: &PreferenceRequest,
    ) -> Result<BTreeSet<String>, DeviceError> {
        self.plugin(&request.resource)?.preferred(request).await
    }

    /// Asks the plugins what a pod's containers need to use the devices that were assigned to them.
    /// On an error, the devices are taken back.
    ///
    /// # Errors
    /// A plugin is gone, refuses, or its answer is invalid.
    pub async fn allocate(&self, pod: &PodUid) -> Result<(), DeviceError> {
        // Also if the caller stops waiting.
        let abandons = Abandons(self, pod.as_str());
        let questions = self.ledger().unanswered(pod.as_str());
        for (container, resource, devices) in questions {
            let begun = Instant::now();
            let plugin = self.plugin(&resource)?;
            info!(pod_uid = %pod, container, resource, ?devices, "allocating devices");
            let answer = plugin.allocate(devices).await;
            let label = [Cow::Owned(resource.clone())];
            let durations = self.0.metrics.allocations.with(label);
            durations.observe_duration(begun.elapsed());
            let mut ledger = self.ledger();
            ledger.answered(pod.as_str(), &container, &resource, answer?);
        }
        drop(abandons);
        Ok(())
    }

    fn plugin(&self, resource: &str) -> Result<DevicePlugin, DeviceError> {
        let ledger = self.ledger();
        let plugin = ledger.resources.get(resource).and_then(|it| it.plugin());
        plugin
            .cloned()
            .ok_or_else(|| DeviceError::Stopped(resource.to_owned()))
    }

    /// What a container needs to use its devices. Notifies the plugins that want it that it starts.
    ///
    /// # Errors
    /// A plugin that must be notified is gone, or refuses.
    pub async fn prepare(
        &self,
        pod: &PodUid,
        container: &str,
    ) -> Result<ContainerDevices, DeviceError> {
        let mut all = ContainerDevices::default();
        let mut to_tell = Vec::new();
        {
            let ledger = self.ledger();
            let of_pod = ledger.assigned.0.get(pod.as_str());
            let of_container = of_pod.and_then(|it| it.get(container));
            for (resource, assignment) in of_container.into_iter().flatten() {
                if let Some(response) = &assignment.response {
                    all.add(resource, response);
                }
                let state = ledger.resources.get(resource).map(|it| &it.plugin);
                let plugin = match state {
                    Some(PluginState::Ready(plugin) | PluginState::Connected(plugin, _)) => {
                        plugin.options().pre_start_required.then(|| plugin.clone())
                    }
                    Some(PluginState::Gone {
                        pre_start: true, ..
                    }) => return Err(DeviceError::Stopped(resource.clone())),
                    None if ledger.removed.get(resource).is_some_and(|it| it.pre_start) => {
                        return Err(DeviceError::Stopped(resource.clone()));
                    }
                    _ => None,
                };
                let ids = assignment.ids().into_iter().map(str::to_owned);
                to_tell.extend(plugin.map(|plugin| (plugin, ids.collect())));
            }
        }
        for (plugin, devices) in to_tell {
            plugin.pre_start(devices).await?;
        }
        Ok(all)
    }

    /// Amounts for the node's status.
    pub fn capacity(&self) -> DeviceCapacity {
        let mut ledger = self.ledger();
        ledger.expire();
        let mut amounts = DeviceCapacity::default();
        for name in ledger.removed.keys() {
            amounts.capacity.insert(name.clone(), 0);
            amounts.allocatable.insert(name.clone(), 0);
        }
        for (name, resource) in &ledger.resources {
            let healthy = resource.healthy().len();
            amounts.allocatable.insert(name.clone(), healthy);
            let all = resource.devices.len();
            amounts.capacity.insert(name.clone(), all);
        }
        amounts
    }

    /// How many devices of each resource pods can have together: those that they have, even if some have
    /// failed since, and all that are healthy. How many there are is not known while their plugin is awaited,
    /// and pods wait for it.
    pub fn assignable(&self) -> BTreeMap<String, usize> {
        let ledger = self.ledger();
        let held = ledger.assigned.all().map(|(_, _, name, _)| name);
        let known = ledger.removed.keys().chain(ledger.resources.keys());
        let names: BTreeSet<&str> = held.chain(known.map(String::as_str)).collect();
        let most = names.into_iter().map(|name| {
            let resource = ledger.resources.get(name);
            let most = if resource.is_some_and(Resource::is_awaited) {
                usize::MAX
            } else {
                let mut devices = ledger.assigned.in_use(name);
                devices.extend(resource.iter().flat_map(|resource| resource.healthy()));
                devices.len()
            };
            (name.to_owned(), most)
        });
        most.collect()
    }

    /// The health of a container's devices, by resource and ID.
    pub fn health_of(
        &self,
        pod: &PodUid,
        container: &str,
    ) -> BTreeMap<String, BTreeMap<String, bool>> {
        self.ledger().health_of(pod.as_str(), container)
    }

    /// The devices of a container by resource and NUMA node; -1 is the key of those without one.
    pub fn devices_of(&self, pod: &PodUid, container: &str) -> BTreeMap<String, DevicesPerNode> {
        self.ledger().devices_of(pod.as_str(), container)
    }

    /// The devices that containers can get, by resource and NUMA node.
    pub fn allocatable(&self) -> BTreeMap<String, DevicesPerNode> {
        self.ledger().allocatable()
    }

    /// Waits until a plugin registers, reports its devices or is gone after `seen` was returned, or for
    /// some seconds. Returns the new value for the next call.
    pub async fn plugins_changed(&self, seen: u64) -> u64 {
        let mut plugins = self.0.plugins.subscribe();
        // The manager has the sender.
        let changed = plugins.wait_for(|now| *now != seen);
        match timeout(LOOK_AGAIN, changed).await {
            Ok(Ok(now)) => *now,
            _ => seen,
        }
    }

    /// The value for the first call of [`plugins_changed`](Self::plugins_changed).
    pub fn plugins_version(&self) -> u64 {
        *self.0.plugins.borrow()
    }

    /// Waits until the health of devices changes, and returns the pods that have one of them.
    pub async fn changed_pods(&self) -> BTreeSet<PodUid> {
        loop {
            let changed = std::mem::take(&mut *self.0.changed_pods.lock());
            if !changed.is_empty() {
                return changed.iter().map(|uid| PodUid::from(&**uid)).collect();
            }
            self.0.health_changed.notified().await;
        }
    }

    /// Whether this machine has no record of devices, not even an empty one: it is new or reinstalled,
    /// and the extended resources of an older node object are those of another machine.
    pub fn is_unrecorded(&self) -> bool {
        self.0.unrecorded.load(Ordering::Relaxed)
    }

    /// Notes that the node's status is this machine's from now on. The record is made with the next
    /// [`save`](Self::save).
    pub fn record(&self) {
        if self.0.unrecorded.swap(false, Ordering::Relaxed) {
            self.ledger().version += 1;
        }
    }

    /// Writes what containers have to the file, if it has changed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn save(&self) -> io::Result<()> {
        let snapshot = |saved| {
            let ledger = self.ledger();
            if ledger.version == saved {
                return Ok(None);
            }
            Ok(Some(Snapshot {
                version: ledger.version,
                files: vec![(self.0.dir.join(FILE), ledger.checkpoint().to_file()?)],
            }))
        };
        self.0.saver.save(snapshot).await
    }

    pub(crate) async fn save_soon(&self) {
        if let Err(error) = self.save().await {
            warn!(%error, "cannot save which devices containers have; retrying");
        }
    }

    pub(crate) fn note_plugins(&self) {
        self.0.plugins.send_modify(|version| *version += 1);
    }

    pub(crate) fn reported(&self, plugin: &DevicePlugin, report: &ListAndWatchResponse) {
        let Some(pods) = self.ledger().reported(plugin, report) else {
            return;
        };
        let resource = plugin.resource();
        info!(
            resource,
            devices = report.devices.len(),
            "device plugin reported its devices"
        );
        if !pods.is_empty() {
            self.0.changed_pods.lock().extend(pods);
            self.0.health_changed.notify_one();
        }
        self.note_plugins();
    }
}

impl Collector for DeviceManager {
    fn collect(&self, page: &mut Exposition) {
        self.0.metrics.collect(page);
    }
}

/// Takes the devices of a pod back whose plugins have not answered, when it is dropped.
struct Abandons<'a>(&'a DeviceManager, &'a str);

impl Drop for Abandons<'_> {
    fn drop(&mut self) {
        self.0.ledger().abandon(self.1);
    }
}

fn read(path: &Path) -> Result<Option<Checkpoint>, ReadError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content)?;
    Ok(Some(Checkpoint::parse(&content)?))
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Invalid(#[from] InvalidState),
}
