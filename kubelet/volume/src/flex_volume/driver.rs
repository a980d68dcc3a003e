//! Drivers: programs `<vendor>~<driver>/<driver>` in the directory of volume plugins. They are
//! looked up before each call, and initialised again when their file has changed.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_host::bounded_program::{self, Limits};
use parking_lot::Mutex;
use tokio::{process::Command, sync::OnceCell};

use super::response::{Capabilities, Response};
use crate::{VolumeError, blocking_on_own_files};

/// Limit of each output of a driver, in bytes.
const MAX_OUTPUT: usize = 64 * 1024;
const MINUTE: Duration = Duration::from_secs(60);

/// A call of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Init,
    Mount,
    Unmount,
    WaitForAttach,
    MountDevice,
    UnmountDevice,
    ExpandFs,
}

impl Call {
    const fn verb(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Mount => "mount",
            Self::Unmount => "unmount",
            Self::WaitForAttach => "waitforattach",
            Self::MountDevice => "mountdevice",
            Self::UnmountDevice => "unmountdevice",
            Self::ExpandFs => "expandfs",
        }
    }

    /// How long it may take. Upstream limits only `waitforattach`, to the same time.
    const fn limit(self) -> Duration {
        match self {
            Self::Init => MINUTE,
            _ => MINUTE.saturating_mul(10),
        }
    }
}

/// The installed drivers.
#[derive(Debug)]
pub(super) struct Drivers {
    /// The directory (`volumePluginDir`).
    dir: PathBuf,
    /// Those that were used, by their names.
    known: Mutex<HashMap<String, Arc<Driver>>>,
}

impl Drivers {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            known: Mutex::default(),
        }
    }

    /// Directory of a driver, whose name is valid.
    pub(super) fn dir_of(&self, name: &str) -> PathBuf {
        self.dir.join(name.replace('/', "~"))
    }

    /// A driver that volumes with this name need.
    pub(super) async fn get(&self, name: &str) -> Result<Arc<Driver>, VolumeError> {
        let driver = self.find(name).await?;
        driver.ok_or_else(|| {
            let program = program_in(&self.dir_of(name), name);
            failed(
                name,
                format!("{program:?} does not exist (volumePluginDir)"),
            )
        })
    }

    /// A driver, initialised; `None` if it is not installed.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Arc<Driver>>, VolumeError> {
        let (dir, driver) = (self.dir_of(name), name.to_owned());
        let program = blocking_on_own_files(move || look_up(&dir, &driver)).await?;
        let Some(program) = program else {
            self.known.lock().remove(name);
            return Ok(None);
        };
        let driver = {
            let mut known = self.known.lock();
            match known.get(name).filter(|driver| driver.program == program) {
                Some(driver) => Arc::clone(driver),
                None => {
                    let driver = Arc::new(Driver {
                        name: name.to_owned(),
                        program,
                        capabilities: OnceCell::new(),
                        unsupported: Mutex::default(),
                    });
                    known.insert(name.to_owned(), Arc::clone(&driver));
                    driver
                }
            }
        };
        driver.init().await?;
        Ok(Some(driver))
    }

    /// The capabilities of a driver as of its last use.
    pub(super) fn capabilities(&self, name: &str) -> Capabilities {
        let driver = self.known.lock().get(name).cloned();
        let capabilities = driver.as_ref().and_then(|driver| driver.capabilities.get());
        capabilities.copied().unwrap_or_default()
    }
}

/// The file of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    /// Device, number, size, and the time of its last change.
    identity: (u64, u64, u64, i64, i64),
}

/// A driver.
#[derive(Debug)]
pub(super) struct Driver {
    name: String,
    program: Program,
    capabilities: OnceCell<Capabilities>,
    /// Calls that it has refused as not supported.
    unsupported: Mutex<BTreeSet<Call>>,
}

impl Driver {
    async fn init(&self) -> Result<(), VolumeError> {
        let init = || async {
            let response = self.call(Call::Init, &[]).await?;
            let response = response.ok_or_else(|| failed(&self.name, "init: Not supported"))?;
            Ok::<_, VolumeError>(response.capabilities())
        };
        self.capabilities.get_or_try_init(init).await.map(drop)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.capabilities.get().copied().unwrap_or_default()
    }

    /// Calls the driver; `None` if it does not support the call. Neither errors nor logs have the
    /// arguments and the driver's output, which may show secrets, except for its message.
    pub(super) async fn call(
        &self,
        call: Call,
        arguments: &[&OsStr],
    ) -> Result<Option<Response>, VolumeError> {
        if self.unsupported.lock().contains(&call) {
            return Ok(None);
        }
        let fail = |why: String| failed(&self.name, format!("{}: {why}", call.verb()));
        let mut command = Command::new(&self.program.path);
        command.arg(call.verb()).args(arguments);
        let limits = Limits {
            time: call.limit(),
            output: MAX_OUTPUT,
        };
        let output = bounded_program::run(command, &[], limits).await;
        let output = output.map_err(|error| fail(error.to_string()))?;
        let response = Response::of(&output).map_err(fail)?;
        if response.is_none() {
            self.unsupported.lock().insert(call);
        }
        Ok(response)
    }

    /// An error of the driver.
    pub(super) fn failed(&self, why: impl Into<String>) -> VolumeError {
        failed(&self.name, why)
    }
}

fn failed(driver: &str, why: impl Into<String>) -> VolumeError {
    VolumeError::FlexVolumeDriver {
        driver: driver.to_owned(),
        why: why.into(),
    }
}

fn program_in(dir: &Path, driver: &str) -> PathBuf {
    let name = driver.rsplit('/').next().unwrap_or(driver);
    dir.join(name)
}

/// The program of a driver, if it is installed. Blocks.
fn look_up(dir: &Path, driver: &str) -> Result<Option<Program>, VolumeError> {
    let refused = |path: &Path, why: &str| failed(driver, format!("{path:?} {why}"));
    let Some(found) = metadata(dir)? else {
        return Ok(None);
    };
    // Links are not followed, as upstream: they may lead to where others install programs.
    if !found.is_dir() {
        return Err(refused(dir, "is not a directory"));
    }
    let path = program_in(dir, driver);
    let Some(program) = metadata(&path)? else {
        return Ok(None);
    };
    if !program.is_file() {
        return Err(refused(&path, "is not a file"));
    }
    if program.mode() & 0o111 == 0 {
        return Err(refused(&path, "is not executable"));
    }
    for (path, metadata) in [(dir, &found), (&*path, &program)] {
        if metadata.mode() & 0o002 != 0 {
            return Err(refused(path, "can be changed by all users"));
        }
    }
    let (seconds, nanoseconds) = (program.ctime(), program.ctime_nsec());
    Ok(Some(Program {
        identity: (
            program.dev(),
            program.ino(),
            program.len(),
            seconds,
            nanoseconds,
        ),
        path,
    }))
}

fn metadata(path: &Path) -> Result<Option<Metadata>, VolumeError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(VolumeError::io("look up the driver", path, error)),
    }
}
