//! `CheckpointContainer`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use atomic_file::Durability;
use cri_proto::runtime::v1::{CheckpointContainerRequest, CheckpointContainerResponse};

use super::{exec::require_running, status::find};
use crate::{
    Error, Shim,
    engine::{Cause, EngineError},
};

/// The timeout if the client does not set one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// The directory of the engine's dumps, below the shim's root directory.
const DUMPS: &str = "dumps";
/// The checkpoint's name in the engine, and its directory in the archive.
const NAME: &str = "checkpoint";
/// The archive's mode; a container's memory may contain secrets.
const MODE: u32 = 0o600;
const NOT_IMPLEMENTED: u16 = 501;

/// The validated request.
#[derive(Debug, PartialEq, Eq)]
struct CheckpointOptions {
    location: PathBuf,
    timeout: Duration,
}

/// Writes the memory and state of a running container's processes to a tar archive; the container
/// keeps running.
///
/// # Errors
/// `InvalidArgument` naming the field; `NotFound`; `FailedPrecondition` if the container is not
/// running or the engine cannot create checkpoints; `File` if the archive cannot be written; the
/// engine's error.
pub async fn checkpoint(
    shim: &Shim,
    request: CheckpointContainerRequest,
) -> Result<CheckpointContainerResponse, Error> {
    let options = CheckpointOptions::of(&request)?;
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    let id = container.id();
    let _reserved = shim.names.reserve(&format!("checkpoint of {id}"))?;
    let directory = shim.config.root_directory.join(DUMPS).join(id);
    let made = make_directory(&directory);
    made.map_err(file("create the directory", &directory))?;
    let dumped = shim
        .engine
        .create_checkpoint(id, NAME, &directory, options.timeout);
    let archived = match dumped.await {
        Ok(()) => archive(directory.clone(), options.location).await,
        Err(error) => Err(explain(error)),
    };
    if archived.is_ok()
        && let Err(error) = shim.engine.delete_checkpoint(id, NAME, &directory).await
    {
        tracing::debug!(container_id = id, %error, "cannot remove the engine's checkpoint");
    }
    remove(&directory);
    archived.map(|()| CheckpointContainerResponse {})
}

/// Removes incomplete checkpoints left by a crash.
pub fn remove_incomplete(root: &Path) {
    remove(&root.join(DUMPS));
}

impl CheckpointOptions {
    fn of(request: &CheckpointContainerRequest) -> Result<Self, Error> {
        let CheckpointContainerRequest {
            location, timeout, ..
        } = request;
        let path = PathBuf::from(location);
        if path.is_relative() || path.file_name().is_none() || location.ends_with('/') {
            let reason = format!("{location:?} is not an absolute path of a file");
            return Err(Error::invalid("location", reason));
        }
        let timeout = match u64::try_from(*timeout) {
            Ok(0) => DEFAULT_TIMEOUT,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let reason = format!("{timeout}; allowed: seconds, or 0 for the default");
                return Err(Error::invalid("timeout", reason));
            }
        };
        Ok(Self {
            location: path,
            timeout,
        })
    }
}

/// Turns the error into one that says what to enable, if checkpoint support is missing.
fn explain(error: EngineError) -> Error {
    let Cause::Refused { status, message } = &error.cause else {
        return error.into();
    };
    let words = message.to_ascii_lowercase();
    if *status == NOT_IMPLEMENTED {
        return Error::FailedPrecondition(format!(
            "{error}: the Docker engine supports checkpoints only with experimental features: set \
             {{\"experimental\": true}} in /etc/docker/daemon.json"
        ));
    }
    if words.contains("criu") && (words.contains("not found") || words.contains("no such file")) {
        return Error::FailedPrecondition(format!(
            "{error}: the Docker engine needs CRIU for checkpoints: install criu on its machine"
        ));
    }
    error.into()
}

/// Creates an empty directory that only root can access.
fn make_directory(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    remove(directory);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

fn remove(directory: &Path) {
    if let Err(error) = tree_walk::remove_all(directory) {
        tracing::warn!(%error, "cannot remove a checkpoint's dump");
    }
}

async fn archive(directory: PathBuf, location: PathBuf) -> Result<(), Error> {
    let dump = directory.join(NAME);
    if !dump.is_dir() {
        return Err(Error::FailedPrecondition(format!(
            "the Docker engine created a checkpoint, but not in {} on this machine: the engine \
             must run here",
            directory.display()
        )));
    }
    let work = tokio::task::spawn_blocking(move || {
        let written = write(&dump, &location);
        written.map_err(file("write the archive", &location))
    });
    let written = work.await;
    written.unwrap_or(Err(Error::Panicked("CheckpointContainer")))
}

/// Writes `dump` to `location` atomically.
fn write(dump: &Path, location: &Path) -> io::Result<()> {
    if let Some(directory) = location.parent() {
        // A mistyped location does not become a directory.
        fs::metadata(directory)?;
    }
    atomic_file::replace_with(location, MODE, Durability::Synced, |file| {
        let mut archive = tar::Builder::new(file);
        archive.follow_symlinks(false);
        archive.append_dir_all(NAME, dump)?;
        archive.finish()
    })
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tonic::Code;

    use super::*;

    fn options(location: &str, timeout: i64) -> Result<CheckpointOptions, Error> {
        CheckpointOptions::of(&CheckpointContainerRequest {
            container_id: "c".into(),
            location: location.into(),
            timeout,
        })
    }

    #[test]
    fn a_bad_field_is_named() {
        for location in ["", "checkpoint.tar", "/", "/var/", "/.."] {
            let error = options(location, 0).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{location:?}");
            assert!(error.to_string().starts_with("location: "), "{error}");
        }
        let error = options("/c.tar", -1).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().starts_with("timeout: -1"), "{error}");
        assert_eq!(options("/c.tar", 0).unwrap().timeout, DEFAULT_TIMEOUT);
        let timeout = options("/c.tar", 3).unwrap().timeout;
        assert_eq!(timeout, Duration::from_secs(3));
    }

    #[test]
    fn what_the_engine_lacks_is_said() {
        let refused = |status, message: &str| {
            explain(EngineError {
                action: "checkpoint container",
                object: "c".into(),
                cause: Cause::Refused {
                    status,
                    message: message.into(),
                },
            })
        };
        let off = refused(501, "This experimental feature is disabled by default.");
        assert_eq!(off.code(), Code::FailedPrecondition);
        assert!(off.to_string().contains("daemon.json"), "{off}");
        let criu = "exec: \"criu\": executable file not found in $PATH";
        let missing = refused(500, criu);
        assert_eq!(missing.code(), Code::FailedPrecondition);
        assert!(missing.to_string().contains("install criu"), "{missing}");
        let failed = refused(500, "criu failed: type NOTIFY errno 0");
        assert_eq!(failed.code(), Code::Unknown);
    }

    #[test]
    fn an_archive_is_whole_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("dump");
        fs::create_dir(&dump).unwrap();
        fs::write(dump.join("pages-1.img"), "memory").unwrap();
        let location = dir.path().join("c.tar");
        fs::write(&location, "before").unwrap();
        write(&dump, &location).unwrap();
        let mode = fs::metadata(&location).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let mut archive = tar::Archive::new(fs::File::open(&location).unwrap());
        let paths = archive.entries().unwrap();
        let paths: Vec<_> = paths
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert!(paths.contains(&PathBuf::from("checkpoint/pages-1.img")));
        write(&dir.path().join("nothing"), &location).unwrap_err();
        write(&dump, &dir.path().join("absent/c.tar")).unwrap_err();
        assert!(!dir.path().join("absent").exists());
        assert!(!atomic_file::temporary(&location).exists());
        assert!(location.exists());
    }
}
