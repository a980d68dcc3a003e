//! The claims that pods of this node use.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_pod_spec::identity::PodUid;

use crate::error::DraError;

/// Which claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A prepared device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimDevice {
    /// The pool of the device.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
    /// Which share of the device, if several claims use it.
    pub share_id: Option<String>,
    /// The requests of the claim that have the device; empty for all.
    pub requests: Vec<String>,
    /// The CDI devices that the runtime adds.
    pub cdi: Vec<String>,
}

impl ClaimDevice {
    /// Whether the device belongs to a request of its claim; the empty name means all of them.
    pub(crate) fn is_of(&self, request: &str) -> bool {
        // A subrequest is named after its request: `request/subrequest`.
        let base = |name: &str| name.split('/').next().map(str::to_owned);
        request.is_empty()
            || self.requests.is_empty()
            || self.requests.iter().any(|of| base(of) == base(request))
    }
}

/// A claim that was prepared, or is being prepared, for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedClaim {
    /// Which claim.
    pub key: ClaimKey,
    /// The claim's UID.
    pub uid: String,
    /// The pods that use it.
    pub pods: BTreeSet<String>,
    /// The devices by the name of their driver.
    pub drivers: BTreeMap<String, Vec<ClaimDevice>>,
    /// Whether the drivers have prepared it for this kubelet.
    pub(crate) is_prepared: bool,
}

impl PreparedClaim {
    pub(crate) fn new(key: ClaimKey, uid: &str) -> Self {
        Self {
            key,
            uid: uid.to_owned(),
            pods: BTreeSet::new(),
            drivers: BTreeMap::new(),
            is_prepared: false,
        }
    }

    /// The claim's devices, with their drivers.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&str, &ClaimDevice)> {
        let drivers = self.drivers.iter();
        drivers.flat_map(|(driver, devices)| devices.iter().map(move |device| (&**driver, device)))
    }
}

/// All claims, by namespace and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    by_key: BTreeMap<ClaimKey, PreparedClaim>,
    /// Grows with each change.
    pub(crate) version: u64,
}

impl Claims {
    pub(crate) fn new(claims: Vec<PreparedClaim>) -> Self {
        let mut by_key = BTreeMap::new();
        by_key.extend(claims.into_iter().map(|claim| (claim.key.clone(), claim)));
        Self { by_key, version: 1 }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &PreparedClaim> {
        self.by_key.values()
    }

    pub(crate) fn get(&self, key: &ClaimKey) -> Option<&PreparedClaim> {
        self.by_key.get(key)
    }

    /// Notes that a pod uses a claim with these drivers. Returns what is known of it.
    pub(crate) fn use_by(
        &mut self,
        pod: &PodUid,
        key: &ClaimKey,
        uid: &str,
        drivers: &BTreeSet<String>,
    ) -> Result<PreparedClaim, DraError> {
        let known = self.by_key.entry(key.clone());
        let claim = known.or_insert_with(|| PreparedClaim::new(key.clone(), uid));
        if claim.uid != uid {
            return Err(DraError::Replaced {
                name: key.name.clone(),
                uid: claim.uid.clone(),
            });
        }
        let mut is_new = claim.pods.insert(pod.as_str().to_owned());
        for driver in drivers {
            if !claim.drivers.contains_key(driver) {
                claim.drivers.insert(driver.clone(), Vec::new());
                claim.is_prepared = false;
                is_new = true;
            }
        }
        self.version += u64::from(is_new);
        Ok(claim.clone())
    }

    /// Sets the devices that a driver has prepared.
    pub(crate) fn set_devices(&mut self, key: &ClaimKey, driver: &str, devices: Vec<ClaimDevice>) {
        if let Some(claim) = self.by_key.get_mut(key)
            && let Some(known) = claim.drivers.get_mut(driver)
            && *known != devices
        {
            *known = devices;
            self.version += 1;
        }
    }

    pub(crate) fn set_prepared(&mut self, key: &ClaimKey) {
        if let Some(claim) = self.by_key.get_mut(key) {
            claim.is_prepared = true;
        }
    }

    /// Notes that a pod does not use a claim any more. If it is the last one, the claim stays until
    /// [`remove`](Self::remove), and is returned.
    pub(crate) fn release(&mut self, pod: &PodUid, key: &ClaimKey) -> Option<PreparedClaim> {
        let claim = self.by_key.get_mut(key)?;
        if !claim.pods.contains(pod.as_str()) {
            return None;
        }
        if claim.pods.len() == 1 {
            // Its drivers may have begun to undo it when they fail.
            claim.is_prepared = false;
            return Some(claim.clone());
        }
        claim.pods.remove(pod.as_str());
        self.version += 1;
        None
    }

    pub(crate) fn remove(&mut self, key: &ClaimKey) {
        if self.by_key.remove(key).is_some() {
            self.version += 1;
        }
    }

    /// The claims that a pod uses.
    pub(crate) fn of_pod<'a>(&'a self, pod: &'a PodUid) -> impl Iterator<Item = &'a ClaimKey> {
        let used = self.all().filter(|claim| claim.pods.contains(pod.as_str()));
        used.map(|claim| &claim.key)
    }

    /// The pods that have a device.
    pub(crate) fn pods_with<'a>(
        &'a self,
        driver: &'a str,
        pool: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a String> {
        let has = move |claim: &&PreparedClaim| {
            let mut devices = claim.drivers.get(driver).into_iter().flatten();
            devices.any(|device| device.pool == pool && device.name == name)
        };
        self.all().filter(has).flat_map(|claim| &claim.pods)
    }
}
