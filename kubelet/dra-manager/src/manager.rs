//! The manager of claims.

mod device_health;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_api_client::objects::Objects;
use kubelet_host::saver::{Saver, Snapshot};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::identity::PodUid;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::warn;

use self::turns::Turns;
use crate::{
    checkpoint,
    claims::{ClaimKey, Claims, PreparedClaim},
    driver::Driver,
    drivers::Drivers,
    error::DraError,
    health::{self, HealthReports},
    metrics::Metrics,
    pod_claims::{self, NamedClaim},
    slices::ClusterNode,
};

/// A file longer than this is damaged: a node has at most a few hundred pods with claims.
const LONGEST: u64 = 64 << 20;
/// Between looks for claims whose pods are gone, as upstream.
const RECONCILE_PERIOD: Duration = Duration::from_secs(60);
/// How long a driver may be gone until its resource slices are deleted, as upstream.
const SLICES_STAY: Duration = Duration::from_secs(30);

/// What a [`DraManager`] is built from.
#[derive(Debug)]
pub struct DraParts {
    /// The kubelet's root directory.
    pub root_dir: PathBuf,
    /// The claims of the API server.
    pub objects: Arc<dyn Objects>,
    /// This node in its cluster; none on a standalone node.
    pub cluster: Option<ClusterNode>,
}

/// Knows the drivers of the node, and which pods use which claims.
#[derive(Clone, Debug)]
pub struct DraManager(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    parts: DraParts,
    claims: Mutex<Claims>,
    saver: Saver,
    turns: Turns,
    drivers: Mutex<Drivers>,
    /// Deletions of the slices of drivers that are gone.
    deletions: Mutex<BTreeMap<String, AbortOnDropHandle<()>>>,
    health: Mutex<HealthReports>,
    saving_health: Arc<tokio::sync::Mutex<()>>,
    /// Pods with a device whose health has changed.
    changed_pods: Mutex<BTreeSet<String>>,
    health_changed: Notify,
    metrics: Metrics,
    cancel: CancellationToken,
}

impl DraManager {
    /// The manager with what pods use by the file in the root directory. A file that cannot be used is
    /// kept beside. Blocks briefly.
    pub fn start(parts: DraParts) -> Self {
        let path = parts.root_dir.join(checkpoint::FILE);
        let claims = read(&path).and_then(|content| match content {
            Some(content) => checkpoint::parse(&content).map_err(io::Error::other),
            None => Ok(Vec::new()),
        });
        let claims = claims.unwrap_or_else(|error| {
            let kept = path.with_extension("damaged");
            let renamed = fs::rename(&path, &kept);
            warn!(
                path = %path.display(), %error, kept = %kept.display(),
                rename_error = renamed.err().map(tracing::field::display),
                "cannot use the file that tells which pods use which resource claims: claims of \
                 pods that have ended stay prepared; drain the node"
            );
            Vec::new()
        });
        let reports = read(&parts.root_dir.join(health::FILE)).ok().flatten();
        let health = HealthReports::parse(&reports.unwrap_or_default());
        Self(Arc::new(Shared {
            parts,
            claims: Mutex::new(Claims::new(claims)),
            saver: Saver::new(1),
            turns: Turns::default(),
            drivers: Mutex::default(),
            deletions: Mutex::default(),
            health: Mutex::new(health),
            saving_health: Arc::default(),
            changed_pods: Mutex::default(),
            health_changed: Notify::new(),
            metrics: Metrics::default(),
            cancel: CancellationToken::new(),
        }))
    }

    /// Releases the claims of pods that are gone, until cancelled. `gone` says which of some pods are.
    pub async fn run(
        &self,
        gone: impl Fn(BTreeSet<PodUid>) -> BTreeSet<PodUid>,
        cancel: CancellationToken,
    ) {
        let ends = self.0.cancel.clone().drop_guard();
        // No driver has registered yet, and perhaps none will.
        let cluster = self.0.parts.cluster.clone();
        let _deletion = cluster.map(|cluster| {
            let deletion = async move { cluster.delete_slices(None).await };
            AbortOnDropHandle::new(tokio::spawn(deletion))
        });
        let reconciling = async {
            loop {
                sleep(RECONCILE_PERIOD).await;
                if let Err(error) = self.save().await {
                    warn!(%error, "cannot save which pods use which resource claims; retrying");
                }
                for pod in gone(self.users()) {
                    if let Err(error) = self.unprepare_claims(&pod).await {
                        warn!(
                            pod_uid = %pod, %error,
                            "cannot release the resource claims of a pod that is gone; retrying"
                        );
                    }
                }
            }
        };
        cancel.run_until_cancelled(reconciling).await;
        // First, so that no deletion is added.
        drop(ends);
        self.0.deletions.lock().clear();
    }

    /// The pods that use claims.
    fn users(&self) -> BTreeSet<PodUid> {
        let claims = self.claims();
        let users = claims.all().flat_map(|claim| &claim.pods);
        users.map(|uid| PodUid::from(&**uid)).collect()
    }

    /// Asks the drivers to prepare the claims of a pod that starts. All drivers must be registered, even if
    /// the claims are prepared, as upstream.
    ///
    /// # Errors
    /// A claim cannot be used, or a driver failed. What was prepared stays so until
    /// [`unprepare`](Self::unprepare).
    pub async fn prepare(&self, pod: &Pod) -> Result<(), DraError> {
        let begun = Instant::now();
        let prepared = Box::pin(self.prepare_claims(pod)).await;
        let metrics = &self.0.metrics;
        metrics.operated("PrepareResources", prepared.is_err(), begun.elapsed());
        prepared
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), DraError> {
        let uid = PodUid::of(pod);
        let named = pod_claims::of_pod(pod)?;
        // A pod without claims starts and ends even if the state file cannot be written.
        if named.is_empty() {
            return Ok(());
        }
        let _turns = self.0.turns.take(named.iter().map(|it| &it.key)).await;
        let mut wanted = BTreeMap::new();
        for named in &named {
            let (claim_uid, drivers) = self.allocation(pod, &uid, named).await?;
            for driver in &drivers {
                self.driver(driver)?;
            }
            wanted.insert(&named.key, (claim_uid, drivers));
        }
        let mut begun = Vec::new();
        {
            let mut claims = self.claims();
            for (key, (claim_uid, drivers)) in wanted {
                let claim = claims.use_by(&uid, key, &claim_uid, &drivers)?;
                if !claim.is_prepared {
                    begun.push(claim);
                }
            }
        }
        // Before the drivers do anything: what they do must be undone.
        self.save().await?;
        for (name, batch) in batches(&begun) {
            let mut devices = self.driver(&name)?.prepare(&batch, &self.0.metrics).await?;
            let mut claims = self.claims();
            for claim in &batch {
                let of_claim = devices.remove(&claim.uid).unwrap_or_default();
                claims.set_devices(&claim.key, &name, of_claim);
            }
        }
        {
            let mut claims = self.claims();
            begun
                .iter()
                .for_each(|claim| claims.set_prepared(&claim.key));
        }
        self.save().await
    }

    /// The UID of a claim, and the drivers of its devices. While the API server is away, a pod may go on
    /// with the claims that it used before.
    async fn allocation(
        &self,
        pod: &Pod,
        uid: &PodUid,
        named: &NamedClaim,
    ) -> Result<(String, BTreeSet<String>), DraError> {
        let ClaimKey { namespace, name } = &named.key;
        let claim = match self.0.parts.objects.resource_claim(namespace, name).await {
            Ok(claim) => claim,
            Err(source) => {
                let claims = self.claims();
                let known = claims.get(&named.key).filter(|_| source.is_away());
                return match known.filter(|known| known.pods.contains(uid.as_str())) {
                    Some(known) => Ok((known.uid.clone(), known.drivers.keys().cloned().collect())),
                    None => Err(DraError::Fetch {
                        name: name.clone(),
                        source,
                    }),
                };
            }
        };
        pod_claims::check(pod, named, &claim)?;
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let allocation = allocation.ok_or_else(|| DraError::NotAllocated(name.clone()))?;
        let devices = allocation.devices.iter();
        let results = devices.flat_map(|devices| devices.results.iter().flatten());
        let drivers = results.map(|result| result.driver.clone()).collect();
        let claim_uid = claim.metadata.uid.clone().unwrap_or_default();
        Ok((claim_uid, drivers))
    }

    /// Whether a pod uses a claim, or did before its end.
    pub fn has_claims(&self, pod: &PodUid) -> bool {
        self.claims().of_pod(pod).next().is_some()
    }

    /// Releases the claims of a pod that has ended. The drivers undo those that no other pod uses.
    ///
    /// # Errors
    /// A driver failed, or is not registered; call again.
    pub async fn unprepare(&self, pod: &PodUid) -> Result<(), DraError> {
        let begun = Instant::now();
        let released = Box::pin(self.unprepare_claims(pod)).await;
        let metrics = &self.0.metrics;
        metrics.operated("UnprepareResources", released.is_err(), begun.elapsed());
        released
    }

    async fn unprepare_claims(&self, pod: &PodUid) -> Result<(), DraError> {
        let used: Vec<ClaimKey> = self.claims().of_pod(pod).cloned().collect();
        if used.is_empty() {
            return Ok(());
        }
        let _turns = self.0.turns.take(used.iter()).await;
        let last: Vec<PreparedClaim> = {
            let mut claims = self.claims();
            used.iter()
                .filter_map(|key| claims.release(pod, key))
                .collect()
        };
        let mut failed = BTreeSet::new();
        let mut result = Ok(());
        for (name, batch) in batches(&last) {
            let done = match self.driver(&name) {
                Ok(driver) => driver.unprepare(&batch, &self.0.metrics).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                failed.extend(batch.into_iter().map(|claim| claim.key));
                result = result.and(Err(error));
            }
        }
        {
            let mut claims = self.claims();
            let undone = last.iter().filter(|claim| !failed.contains(&claim.key));
            undone.for_each(|claim| claims.remove(&claim.key));
        }
        let saved = self.save().await;
        result.and(saved)
    }

    /// The CDI devices of a container.
    ///
    /// # Errors
    /// A claim cannot be used.
    pub async fn cdi_devices(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<String>, DraError> {
        match self.prepared_cdi_devices(pod, container) {
            // The state file was lost under a running pod.
            Err(DraError::Unprepared { .. }) => {
                self.prepare(pod).await?;
                self.prepared_cdi_devices(pod, container)
            }
            devices => devices,
        }
    }

    fn prepared_cdi_devices(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<String>, DraError> {
        let uid = PodUid::of(pod);
        let named = pod_claims::of_container(pod, container)?;
        let claims = self.claims();
        let mut cdi = Vec::new();
        for (key, requests) in named {
            let claim = claims.get(&key);
            let claim = claim.filter(|claim| claim.pods.contains(uid.as_str()));
            let claim = claim.ok_or_else(|| DraError::Unprepared {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            })?;
            let has = |device: &crate::ClaimDevice| requests.iter().any(|it| device.is_of(it));
            for (_, device) in claim.devices().filter(|(_, device)| has(device)) {
                for id in &device.cdi {
                    if !cdi.contains(id) {
                        cdi.push(id.clone());
                    }
                }
            }
        }
        Ok(cdi)
    }

    /// The claims of a container.
    pub fn claims_of(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim> {
        // Only a pod that has not started has claims that cannot be resolved.
        let named = pod_claims::of_container(pod, container).unwrap_or_default();
        let claims = self.claims();
        let known = named.keys().filter_map(|key| claims.get(key));
        known.cloned().collect()
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.0.claims.lock()
    }

    pub(crate) fn drivers(&self) -> MutexGuard<'_, Drivers> {
        self.0.drivers.lock()
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, HealthReports> {
        self.0.health.lock()
    }

    /// Whether the kubelet stops.
    pub(crate) fn stops(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// A token of a driver, which is cancelled when the kubelet stops.
    pub(crate) fn ends(&self) -> CancellationToken {
        self.0.cancel.child_token()
    }

    fn driver(&self, name: &str) -> Result<Driver, DraError> {
        self.drivers().get(name)
    }

    /// Deletes the slices of a driver that stays unusable. Called whenever that may have changed.
    pub(crate) fn note_usable(&self, driver: &str) {
        let Some(cluster) = self.0.parts.cluster.clone() else {
            return;
        };
        let mut deletions = self.0.deletions.lock();
        // Read under the lock: several connections of a driver may change at once.
        let is_usable = self.drivers().is_usable(driver);
        if is_usable {
            deletions.remove(driver);
        } else if deletions.get(driver).is_none_or(|it| it.is_finished())
            && !self.0.cancel.is_cancelled()
        {
            let name = driver.to_owned();
            let deletion = tokio::spawn(async move {
                sleep(SLICES_STAY).await;
                cluster.delete_slices(Some(&name)).await;
            });
            deletions.insert(driver.to_owned(), AbortOnDropHandle::new(deletion));
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.parts.root_dir.join(file)
    }

    /// Writes which pods use which claims to the file, if it has changed.
    async fn save(&self) -> Result<(), DraError> {
        let snapshot = |saved| {
            let claims = self.claims();
            if claims.version == saved {
                return Ok(None);
            }
            let content = checkpoint::content(claims.all())?;
            Ok(Some(Snapshot {
                version: claims.version,
                files: vec![(self.path(checkpoint::FILE), content)],
            }))
        };
        let saved = self.0.saver.save(snapshot).await;
        saved.map_err(|error| DraError::Save(error.to_string()))
    }
}

impl Collector for DraManager {
    fn collect(&self, page: &mut Exposition) {
        self.0.metrics.collect(page);
        let name = "dra_resource_claims_in_use";
        page.family(
            name,
            "gauge",
            "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver \
             name (driver_name label value) and across all drivers (special value <any> for \
             driver_name). Note that the sum of all by-driver counts is not the total number of \
             in-use ResourceClaims because the same ResourceClaim might use devices from different \
             drivers. Instead, use the count for the <any> driver_name.",
        );
        let mut counts = BTreeMap::from([("<any>".to_owned(), 0)]);
        for claim in self.claims().all().filter(|claim| claim.is_prepared) {
            let drivers = claim.drivers.keys().map(String::as_str);
            for driver in drivers.chain(["<any>"]) {
                *counts.entry(driver.to_owned()).or_default() += 1;
            }
        }
        for (driver, count) in counts {
            page.sample(name, &[("driver_name", &driver)], count, None);
        }
    }
}

/// The claims of each driver.
fn batches(claims: &[PreparedClaim]) -> BTreeMap<String, Vec<PreparedClaim>> {
    let mut batches = BTreeMap::<String, Vec<PreparedClaim>>::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            let batch = batches.entry(driver.clone()).or_default();
            batch.push(claim.clone());
        }
    }
    batches
}

/// The content of a file, if it exists.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content)?;
    Ok(Some(content))
}
