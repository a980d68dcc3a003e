//! A node for tests, and pods and usages on it.

use super::*;

/// A node whose signals and pods are set, and which logs what is done to it.
#[derive(Debug, Default)]
pub(super) struct FakeNode(pub(super) Mutex<Fake>, pub(super) Notify);

#[derive(Debug, Default)]
pub(super) struct Fake {
    pub(super) available: BTreeMap<Signal, u64>,
    pub(super) layout: Layout,
    /// What each reclaim makes available.
    pub(super) reclaimable: BTreeMap<&'static str, (Signal, u64)>,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) usages: PodUsages,
    /// What a reclaim makes available some observations later.
    pub(super) freed_later: Option<(u32, Signal, u64)>,
    /// What the eviction of a pod makes available.
    pub(super) frees: Option<(Signal, u64)>,
    pub(super) is_unobservable: bool,
    pub(super) is_unmeasurable: bool,
    pub(super) keeps_resources: bool,
    pub(super) log: Vec<String>,
    pub(super) evictions: Vec<Eviction>,
    pub(super) observations: u32,
    pub(super) marks: Vec<MemoryMark>,
}

impl EvictionHost for FakeNode {
    async fn observe(&self) -> Result<Observed, String> {
        let fake = &mut *self.0.lock();
        fake.observations += 1;
        if let Some((at, signal, bytes)) = fake.freed_later
            && fake.observations >= at
        {
            fake.available.insert(signal, bytes);
        }
        if fake.is_unobservable {
            return Err("no".to_owned());
        }
        let at = Timestamp::UNIX_EPOCH + Duration::from_secs(fake.observations.into());
        let observation = |available| Observation {
            available,
            capacity: 1000,
            at,
        };
        let signals = fake.available.iter();
        Ok(Observed {
            signals: signals
                .map(|(signal, it)| (*signal, observation(*it)))
                .collect(),
            layout: Some(fake.layout),
        })
    }

    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().pods.clone()
    }

    async fn usages(&self, depth: UsageDepth) -> Result<PodUsages, String> {
        let fake = &mut *self.0.lock();
        fake.log.push(format!("measure {depth:?}"));
        if fake.is_unmeasurable {
            return Err("no".to_owned());
        }
        Ok(fake.usages.clone())
    }

    async fn reclaim(&self, what: Reclaim) -> Result<bool, String> {
        let fake = &mut *self.0.lock();
        let name = match what {
            Reclaim::Containers => "containers",
            Reclaim::Images => "images",
        };
        fake.log.push(format!("reclaim {name}"));
        match fake.reclaimable.remove(name) {
            Some((signal, bytes)) => {
                *fake.available.entry(signal).or_default() += bytes;
                Ok(true)
            }
            None => Err("nothing to reclaim".to_owned()),
        }
    }

    async fn evict(&self, pod: &Arc<Pod>, eviction: Eviction) -> Result<(), String> {
        let fake = &mut *self.0.lock();
        fake.log.push(format!("evict {}", identity::name(pod)));
        fake.evictions.push(eviction);
        fake.pods
            .retain(|other| PodUid::of(other) != PodUid::of(pod));
        if let Some((signal, bytes)) = fake.frees {
            *fake.available.entry(signal).or_default() += bytes;
        }
        Ok(())
    }

    async fn remove_containers(&self, pods: &[PodUid]) -> Result<(), String> {
        let fake = &mut *self.0.lock();
        let names: Vec<&str> = pods.iter().map(PodUid::as_str).collect();
        fake.log.push(format!("remove {}", names.join(" ")));
        Ok(())
    }

    async fn memory_is_scarce(&self, marks: &[MemoryMark]) {
        self.0.lock().marks = marks.to_vec();
        if marks.is_empty() {
            std::future::pending::<()>().await;
        }
        self.1.notified().await;
    }

    fn is_cleaned_up(&self, _: &PodUid) -> bool {
        !self.0.lock().keeps_resources
    }
}

impl FakeNode {
    pub(super) fn add(&self, pod: Value, usage: PodUsage) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut fake = self.0.lock();
        fake.usages.insert(PodUid::of(&pod), usage);
        fake.pods.push(Arc::new(pod));
    }

    pub(super) fn set(&self, signal: Signal, available: u64) {
        self.0.lock().available.insert(signal, available);
    }

    pub(super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().log)
    }
}

pub(super) fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"containers": [{"name": "c"}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

pub(super) fn memory(bytes: u64) -> PodUsage {
    let container = ContainerUsage {
        memory: Some(bytes),
        ..ContainerUsage::default()
    };
    PodUsage {
        memory: Some(bytes),
        containers: [("c".to_owned(), container)].into(),
        ..PodUsage::default()
    }
}

pub(super) fn logs(bytes: u64) -> PodUsage {
    let container = ContainerUsage {
        logs: Some(FileUsage { bytes, inodes: 1 }),
        layer: Some(FileUsage::default()),
        ..ContainerUsage::default()
    };
    PodUsage {
        containers: [("c".to_owned(), container)].into(),
        ..PodUsage::default()
    }
}

pub(super) fn amount(units: i128) -> AmountOrShare {
    AmountOrShare::Amount(units * NANOS)
}

/// A manager with thresholds of 100 for memory, the file system and process IDs, and its events.
pub(super) fn manager(change: impl FnOnce(&mut EvictionOptions)) -> (EvictionManager, EventQueue) {
    let signals = [
        Signal::MemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::PidAvailable,
    ];
    let mut options = EvictionOptions {
        thresholds: signals
            .map(|signal| Threshold::hard(signal, amount(100)))
            .into(),
        ..EvictionOptions::default()
    };
    change(&mut options);
    let (recorder, events) = EventRecorder::new("node");
    (EvictionManager::new(options, recorder), events)
}

pub(super) fn recorded(events: &mut EventQueue) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

pub(super) fn reasons(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|it| it.reason.as_deref())
        .collect()
}
