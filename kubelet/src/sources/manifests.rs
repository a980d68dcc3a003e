//! The pods of a manifest file or directory, as of the last scan.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsString,
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    identity::full_name,
    manifest::{ManifestError, decode},
};
use tracing::{error, info, warn};

use super::static_pod::{Origin, static_pod};
use crate::sources::pod_config::PodSet;

/// Maximum size of a manifest in bytes.
const MAX_LENGTH: u64 = 10 << 20;

/// Why a file provides no pods.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    #[error("is larger than {MAX_LENGTH} bytes")]
    TooLarge,
    /// It is empty, or something else than a manifest, such as a README.
    #[error("has no kind")]
    NoKind,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl FileError {
    /// Whether the file cannot be the manifest of a pod that an earlier kubelet ran.
    fn is_no_manifest(&self) -> bool {
        match self {
            Self::Read(error) => error.kind() == io::ErrorKind::NotFound,
            Self::NoKind => true,
            Self::TooLarge | Self::Manifest(_) => false,
        }
    }
}

/// The pods of a manifest file or directory, and the state of each file.
///
/// An unreadable or invalid file keeps the pods of its last valid content, so that a typo kills no
/// pods.
#[derive(Debug)]
pub(super) struct Manifests {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, File>,
    /// Whether the path itself was ever readable.
    read: bool,
    /// The last message about the path itself, to log it once.
    said: Option<String>,
    /// Files with a pod whose name belongs to another file's, and the message about it.
    shadowed: HashMap<PathBuf, String>,
}

#[derive(Debug, Default)]
struct File {
    /// The file's signature when it was last read.
    signature: Option<Signature>,
    /// The pods of its last valid content; none if it was never valid.
    pods: Option<Vec<Arc<Pod>>>,
    /// The last message about the file, to log it once.
    said: Option<String>,
}

/// Differs if the file's content may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Manifests {
    pub(super) fn new(path: PathBuf, node_name: String) -> Self {
        Self {
            path,
            node_name,
            files: BTreeMap::new(),
            read: false,
            said: None,
            shadowed: HashMap::new(),
        }
    }

    /// Reads changed files, and returns the sets of pods to send. If a file reappeared after its
    /// name had been gone (`gone`), its pods end first, as upstream: a set without them precedes
    /// the set of all pods. A file that reappears invalid ends no pods.
    pub(super) fn scan(&mut self, gone: &BTreeSet<OsString>) -> Vec<PodSet> {
        self.read_changes();
        let all = self.pods();
        let made_again = self.files.iter().filter(|(path, file)| {
            let name = path.file_name();
            name.is_some_and(|name| gone.contains(name)) && file.said.is_none()
        });
        let ended: Vec<_> = made_again
            .flat_map(|(_, file)| &file.pods)
            .flatten()
            .collect();
        if ended.is_empty() {
            return vec![all];
        }
        let goes_on = |pod: &&Arc<Pod>| !ended.iter().any(|ended| Arc::ptr_eq(ended, pod));
        let others = PodSet {
            pods: all.pods.iter().filter(goes_on).cloned().collect(),
            complete: all.complete,
        };
        vec![others, all]
    }

    fn read_changes(&mut self) {
        match list(&self.path) {
            Ok(paths) => {
                self.read = true;
                self.said = None;
                self.files.retain(|path, _| {
                    let kept = paths.contains(path);
                    if !kept {
                        info!(file = %path.display(), "manifest was removed");
                    }
                    kept
                });
                for path in paths {
                    let file = self.files.entry(path.clone()).or_default();
                    file.refresh(&path, &self.node_name);
                }
            }
            // A path that does not exist is known to have no pods.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.read = true;
                self.files.clear();
                self.say(|path| {
                    warn!(
                        path = %path.display(),
                        "the manifest path does not exist; no static pods until it does"
                    );
                    "missing".to_owned()
                });
            }
            Err(error) => self.say(|path| {
                let message = error.to_string();
                error!(
                    path = %path.display(), error = message,
                    "cannot read the manifest path; its pods stay unchanged"
                );
                message
            }),
        }
    }

    fn say(&mut self, say: impl FnOnce(&Path) -> String) {
        if self.said.is_none() {
            self.said = Some(say(&self.path));
        }
    }

    /// The pods of all files. Of pods with the same name, the first file's is used.
    fn pods(&mut self) -> PodSet {
        let mut complete = self.read;
        let mut owners: HashMap<String, &Path> = HashMap::new();
        let mut pods = Vec::new();
        let mut shadowed = HashMap::new();
        for (path, file) in &self.files {
            let Some(of_file) = &file.pods else {
                complete = false;
                continue;
            };
            for pod in of_file {
                let name = full_name(pod);
                match owners.get(&name) {
                    None => {
                        owners.insert(name, path);
                        pods.push(pod.clone());
                    }
                    Some(owner) => {
                        let message = format!(
                            "pod {name} is also in {}, which takes precedence",
                            owner.display()
                        );
                        if self.shadowed.get(path) != Some(&message) {
                            error!(file = %path.display(), pod = name, "ignoring a pod: {message}");
                        }
                        shadowed.insert(path.clone(), message);
                    }
                }
            }
        }
        self.shadowed = shadowed;
        PodSet { pods, complete }
    }
}

impl File {
    /// Reads the file if it may have changed.
    fn refresh(&mut self, path: &Path, node_name: &str) {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.signature = None;
                return self.fail(path, &FileError::Read(error));
            }
        };
        if !metadata.is_file() {
            self.pods = Some(Vec::new());
            if self.said.is_none() {
                let what = if metadata.is_dir() {
                    "a directory; subdirectories are not searched for manifests"
                } else {
                    "neither a file nor a directory"
                };
                warn!(file = %path.display(), "skipped: it is {what}");
                self.said = Some(what.to_owned());
            }
            return;
        }
        let signature = Signature::of(&metadata);
        if self.signature == Some(signature) {
            return;
        }
        // Taken before reading, so that a change meanwhile is read the next time.
        self.signature = Some(signature);
        match read(path, node_name) {
            Ok(pods) => {
                for pod in &pods {
                    info!(file = %path.display(), pod = full_name(pod), "read a manifest");
                }
                self.pods = Some(pods);
                self.said = None;
            }
            Err(error) => {
                if matches!(error, FileError::Read(_)) {
                    self.signature = None;
                }
                self.fail(path, &error);
            }
        }
    }

    /// Logs once what is wrong with the file, and what happens to its pods.
    fn fail(&mut self, path: &Path, fault: &FileError) {
        let message = fault.to_string();
        if self.said.as_ref() == Some(&message) {
            return;
        }
        let consequence = if self.pods.is_some() {
            "the pods of its last valid content stay"
        } else if fault.is_no_manifest() {
            self.pods = Some(Vec::new());
            "it is skipped"
        } else {
            "it has not been valid since the kubelet started: until it is, pods that are in no \
             manifest keep running"
        };
        error!(file = %path.display(), "cannot use a manifest: {message} ({consequence})");
        self.said = Some(message);
    }
}

impl Signature {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The paths of the manifests, sorted: the path itself if it is a file, or the directory's entries
/// without a leading dot.
fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Whether there is a field `kind`, as in each manifest, even if it is not valid YAML or JSON.
fn has_kind(bytes: &[u8]) -> bool {
    let words = bytes.windows(4).enumerate();
    let mut found = words.filter(|(_, word)| *word == b"kind");
    found.any(|(at, _)| {
        let rest = bytes[at + 4..].iter();
        let mut rest = rest.filter(|byte| !byte.is_ascii_whitespace() && !b"\"'".contains(byte));
        rest.next() == Some(&b':')
    })
}

/// The static pods of a manifest file.
fn read(path: &Path, node_name: &str) -> Result<Vec<Arc<Pod>>, FileError> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_LENGTH + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LENGTH {
        return Err(FileError::TooLarge);
    }
    if !has_kind(&bytes) {
        return Err(FileError::NoKind);
    }
    let manifest = decode(&bytes)?;
    // Logged for invalid manifests too: an unknown field is often a misspelt one that is missing.
    for warning in &manifest.warnings {
        warn!(file = %path.display(), "{warning}");
    }
    let pods = manifest
        .pods
        .into_iter()
        .map(|pod| static_pod(pod, Origin::File(path), node_name).map(Arc::new))
        .collect::<Result<_, _>>()?;
    Ok(pods)
}
