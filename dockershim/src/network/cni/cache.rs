//! The cache of attachments, in libcni's location and format. Each attachment has a file, so that
//! it is detached with the configuration that it was attached with, and so that other users of
//! libcni find it.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use atomic_file::Durability;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{chain::Attachment, error::CniError, pod::NetNs};

const KIND: &str = "cniCacheV1";
/// The mode of an attachment's file, as libcni's.
const MODE: u32 = 0o600;
/// Whether a file of this name is not written completely, by this shim or an older one. Names of
/// networks do not begin with a dot.
fn is_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

const LOCK: &str = "dockershim.lock";
/// How long to wait for the lock; longer than a plugin's garbage collection may take.
const LOCK_PATIENCE: Duration = Duration::from_secs(150);
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Identifies an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentKey {
    /// The network's name.
    pub network: String,
    /// The sandbox's id.
    pub container_id: String,
    /// The interface.
    pub ifname: String,
}

/// A cached attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CachedAttachment {
    kind: String,
    /// The sandbox's id.
    pub container_id: String,
    /// The network's configuration in `.conflist` format.
    #[serde(with = "base64_bytes")]
    pub config: Vec<u8>,
    /// The interface.
    pub if_name: String,
    /// The network's name.
    pub network_name: String,
    /// The path of the network namespace at attach time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// `CNI_ARGS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_args: Option<Vec<(String, String)>>,
    /// Arguments by capability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability_args: Option<Map<String, Value>>,
    /// The result of `ADD`; `None` if it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The shim that created it, among those that share the directory; other runtimes do not set
    /// this.
    #[serde(
        rename = "dockershim",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub owner: Option<String>,
}

/// Go's JSON encodes bytes as base64.
mod base64_bytes {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = Option::<String>::deserialize(from)?.unwrap_or_default();
        BASE64_STANDARD.decode(text).map_err(D::Error::custom)
    }
}

/// The cache directory, which may be shared with shims of other engines and with other runtimes.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
    lock: PathBuf,
}

/// What a directory's lock is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// An attachment; shared, so that several shims can attach at once.
    Attach,
    /// Garbage collection; exclusive, so that nothing is attached meanwhile.
    CollectGarbage,
}

/// A held lock; dropping it releases the lock.
#[derive(Debug)]
pub struct CacheLock(#[expect(dead_code, reason = "the lock is the file's")] fs::File);

// === impl CachedAttachment ===

impl CachedAttachment {
    /// Creates the entry for an attachment to the network `network_name`.
    pub fn new(network_name: &str, config: &[u8], attachment: &Attachment) -> Self {
        let capability_args = Some(attachment.capability_args.clone());
        Self {
            kind: KIND.into(),
            container_id: attachment.container_id.clone(),
            config: config.to_owned(),
            if_name: attachment.ifname.clone(),
            network_name: network_name.into(),
            netns: attachment.netns.clone(),
            cni_args: Some(attachment.args.clone()),
            capability_args: capability_args.filter(|args| !args.is_empty()),
            result: None,
            owner: None,
        }
    }

    /// The attachment's key.
    pub fn key(&self) -> AttachmentKey {
        AttachmentKey {
            network: self.network_name.clone(),
            container_id: self.container_id.clone(),
            ifname: self.if_name.clone(),
        }
    }

    /// The attachment and its result, with the current path of its network namespace, if it exists.
    pub fn of(&self, netns: Option<&NetNs>) -> (Attachment, Option<Value>) {
        let path = netns.map(NetNs::path).unwrap_or_default();
        let mut result = self.result.clone();
        // Plugins compare the path in the result with the attachment's.
        let interfaces = result.as_mut().and_then(|r| r.get_mut("interfaces"));
        let interfaces = interfaces.and_then(Value::as_array_mut).into_iter();
        for sandbox in interfaces.flatten().filter_map(|i| i.get_mut("sandbox")) {
            if !path.is_empty() && *sandbox == *self.netns {
                *sandbox = path.clone().into();
            }
        }
        let attachment = Attachment {
            container_id: self.container_id.clone(),
            netns: path,
            ifname: self.if_name.clone(),
            args: self.cni_args.clone().unwrap_or_default(),
            capability_args: self.capability_args.clone().unwrap_or_default(),
        };
        (attachment, result)
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let cached: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if cached.kind != KIND {
            return Err(format!("kind is {:?}, not {KIND:?}", cached.kind));
        }
        Ok(cached)
    }
}

// === impl Cache ===

impl Cache {
    /// Creates a cache in `directory`, which need not exist.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.join("results"),
            lock: directory.join(LOCK),
        }
    }

    /// Takes the directory's lock, waiting if necessary.
    ///
    /// # Errors
    /// [`CniError::Locked`] if it is held for too long, or [`CniError::Cache`].
    pub async fn lock(&self, what: LockMode) -> Result<CacheLock, CniError> {
        let began = Instant::now();
        loop {
            let this = self.clone();
            let task = tokio::task::spawn_blocking(move || this.try_lock(what));
            let tried = task
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)));
            let failed = |source| CniError::Cache {
                action: "lock",
                path: self.lock.clone(),
                source,
            };
            match tried.map_err(failed)? {
                Some(locked) => return Ok(locked),
                None if began.elapsed() > LOCK_PATIENCE => {
                    return Err(CniError::Locked(self.lock.clone()));
                }
                None => tokio::time::sleep(LOCK_PAUSE).await,
            }
        }
    }

    /// Takes the directory's lock if it is free. Blocks for I/O, but not for the lock.
    fn try_lock(&self, what: LockMode) -> io::Result<Option<CacheLock>> {
        if let Some(directory) = self.lock.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&self.lock)?;
        let operation = match what {
            LockMode::Attach => FlockOperation::NonBlockingLockShared,
            LockMode::CollectGarbage => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&file, operation) {
            Ok(()) => Ok(Some(CacheLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, key: &AttachmentKey) -> PathBuf {
        self.directory.join(file_name(key))
    }

    /// Stores an attachment atomically.
    ///
    /// # Errors
    /// [`CniError::Cache`].
    pub async fn put(&self, cached: &CachedAttachment) -> Result<(), CniError> {
        let key = cached.key();
        let path = self.path(&key);
        let (to, text) = (path.clone(), serde_json::to_vec(cached));
        let written = tokio::task::spawn_blocking(move || {
            atomic_file::replace(&to, &text?, MODE, Durability::Unsynced)
        });
        let written = written.await.map_err(io::Error::other).flatten();
        written.map_err(|source| CniError::Cache {
            action: "write",
            path,
            source,
        })
    }

    /// Removes temporary files of an earlier shim that was killed, unless another shim may be
    /// writing. Must be called before this one writes. Blocks.
    pub fn remove_unfinished(&self) {
        let Ok(Some(_nobody_writes)) = self.try_lock(LockMode::CollectGarbage) else {
            return;
        };
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            if is_unfinished(&name)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(
                    file = %entry.path().display(),
                    %error,
                    "cannot remove a temporary file"
                );
            }
        }
    }

    /// The cached attachment; `None` if it cannot be read.
    pub async fn get(&self, key: &AttachmentKey) -> Option<CachedAttachment> {
        let path = self.path(key);
        let bytes = tokio::fs::read(&path).await;
        let read = bytes.map_err(|error| error.to_string());
        match read.and_then(|bytes| CachedAttachment::read(&bytes)) {
            Ok(cached) => Some(cached),
            Err(reason) => {
                tracing::warn!(
                    file = %path.display(),
                    reason,
                    "cannot read the record of an attachment"
                );
                None
            }
        }
    }

    /// Removes a cached attachment, if it exists.
    ///
    /// # Errors
    /// [`CniError::Cache`].
    pub async fn remove(&self, key: &AttachmentKey) -> Result<(), CniError> {
        let path = self.path(key);
        match tokio::fs::remove_file(&path).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(CniError::Cache {
                action: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// All cached attachments that can be read. Blocks.
    pub fn load(&self) -> Vec<CachedAttachment> {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            if is_unfinished(&name) || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let bytes = fs::read(entry.path()).map_err(|error| error.to_string());
            match bytes.and_then(|bytes| CachedAttachment::read(&bytes)) {
                // An entry whose content does not match its name is not trusted.
                Ok(cached) if *file_name(&cached.key()) == *name => found.push(cached),
                Ok(_) => {}
                Err(reason) => {
                    tracing::warn!(
                        file = %entry.path().display(),
                        reason,
                        "cannot read an attachment's record"
                    );
                }
            }
        }
        found
    }
}

fn file_name(key: &AttachmentKey) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn cached(id: &str) -> CachedAttachment {
        let attachment = Attachment {
            container_id: id.into(),
            netns: "/proc/7/ns/net".into(),
            ifname: "eth0".into(),
            args: vec![("IgnoreUnknown".into(), "1".into())],
            capability_args: Map::from_iter([("dns".into(), json!({"servers": ["1.1.1.1"]}))]),
        };
        let mut cached = CachedAttachment::new("net", b"{\"name\":\"net\"}", &attachment);
        cached.result = Some(json!({"cniVersion": "1.0.0"}));
        cached
    }

    #[tokio::test]
    async fn what_is_put_is_found_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(&dir.path().join("new"));
        assert_eq!(cache.load(), []);
        let first = cached("first");
        cache.put(&first).await.unwrap();
        cache.put(&first).await.unwrap();
        assert!(dir.path().join("new/results/net-first-eth0").is_file());
        assert_eq!(cache.get(&first.key()).await, Some(first.clone()));
        assert_eq!(
            Cache::new(&dir.path().join("new")).load(),
            std::slice::from_ref(&first)
        );
        cache.remove(&first.key()).await.unwrap();
        cache.remove(&first.key()).await.unwrap();
        assert_eq!(cache.load(), []);
        assert_eq!(cache.get(&first.key()).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_attached_while_another_shim_collects_garbage() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Cache::new(dir.path()), Cache::new(dir.path()));
        let unfinished = dir.path().join("results/.net-x-eth0.tmp");
        fs::create_dir(dir.path().join("results")).unwrap();
        fs::write(&unfinished, "").unwrap();
        let attaches = one.lock(LockMode::Attach).await.unwrap();
        drop(other.lock(LockMode::Attach).await.unwrap());
        let refused = other.lock(LockMode::CollectGarbage).await.unwrap_err();
        assert!(matches!(refused, CniError::Locked(_)), "{refused}");
        other.remove_unfinished();
        assert!(unfinished.exists());
        drop(attaches);
        let collects = other.lock(LockMode::CollectGarbage).await.unwrap();
        one.lock(LockMode::Attach).await.unwrap_err();
        drop(collects);
        one.lock(LockMode::Attach).await.unwrap();
        other.remove_unfinished();
        assert!(!unfinished.exists());
    }

    #[tokio::test]
    async fn what_is_broken_or_misplaced_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        cache.put(&cached("first")).await.unwrap();
        let results = dir.path().join("results");
        fs::write(results.join("net-half-eth0"), "{\"kind\":\"cniCa").unwrap();
        fs::write(results.join("net-old-eth0"), "{\"cniVersion\":\"0.4.0\"}").unwrap();
        fs::copy(
            results.join("net-first-eth0"),
            results.join("net-other-eth0"),
        )
        .unwrap();
        let unfinished = results.join(".unfinished-net-x-eth0");
        fs::write(&unfinished, "").unwrap();
        assert_eq!(cache.load(), [cached("first")]);
        cache.remove_unfinished();
        assert!(!unfinished.exists());
        assert_eq!(cache.load(), [cached("first")]);
    }

    #[test]
    fn a_result_names_the_path_that_its_namespace_has_now() {
        let mut cached = cached("first");
        cached.result = Some(json!({"interfaces": [
            {"name": "cni0"},
            {"name": "eth0", "sandbox": "/proc/7/ns/net"},
            {"name": "net1", "sandbox": "/proc/8/ns/net"},
        ]}));
        let netns = NetNs::own();
        let (attachment, result) = cached.of(Some(&netns));
        assert_eq!(attachment.netns, netns.path());
        let interfaces = &result.unwrap()["interfaces"];
        assert_eq!(interfaces[0].get("sandbox"), None);
        assert_eq!(interfaces[1]["sandbox"], netns.path());
        assert_eq!(interfaces[2]["sandbox"], "/proc/8/ns/net");
        let (attachment, result) = cached.of(None);
        assert_eq!((attachment.netns, result), (String::new(), cached.result));
    }

    #[test]
    fn what_libcni_wrote_is_read() {
        let text = r#"{"kind":"cniCacheV1","containerId":"c1","config":"eyJuYW1lIjoibmV0In0=",
            "ifName":"eth0","networkName":"net","netns":"/proc/1/ns/net",
            "cniArgs":[["K8S_POD_NAME","web"]],"capabilityArgs":{"portMappings":[]},
            "result":{"cniVersion":"1.0.0","dns":{}}}"#;
        let cached = CachedAttachment::read(text.as_bytes()).unwrap();
        assert_eq!(cached.config, b"{\"name\":\"net\"}");
        assert_eq!(cached.cni_args.unwrap()[0].1, "web");
        let legacy = r#"{"kind":"","containerId":"","config":null,"ifName":"","networkName":""}"#;
        assert!(CachedAttachment::read(legacy.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}", id in ".{0,12}", config in ".{0,12}") {
            let _ = CachedAttachment::read(text.as_bytes());
            let mut written = cached(&id);
            written.config = config.into_bytes();
            let json = serde_json::to_vec(&written).unwrap();
            prop_assert_eq!(CachedAttachment::read(&json).unwrap(), written);
            let _ = CachedAttachment::read(&json[..json.len() / 2]);
        }
    }
}
