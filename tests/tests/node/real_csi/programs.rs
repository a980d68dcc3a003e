//! The location of csi-driver-host-path and its registrar.

use std::{env, path::PathBuf};

use anyhow::{Result, bail};
use test_run::skips;

/// The environment variable with their directory.
const VARIABLE: &str = "CSI_HOST_PATH_BIN";

const DRIVER: &str = "hostpathplugin";
const REGISTRAR: &str = "csi-node-driver-registrar";

/// The driver and its registrar.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// Path of the driver.
    pub driver: PathBuf,
    /// Path of the registrar.
    pub registrar: PathBuf,
}

impl Programs {
    /// The programs in the directory `CSI_HOST_PATH_BIN`. If the variable is not set, there are
    /// none, and `test` is [skipped](skips::skip).
    ///
    /// # Errors
    /// One of them is not in that directory.
    pub(crate) fn at_hand(test: &str) -> Result<Option<Self>> {
        let Some(directory) = env::var_os(VARIABLE).map(PathBuf::from) else {
            let reason = format!("{VARIABLE} names no directory with {DRIVER}, {REGISTRAR}");
            skips::skip(test, &reason);
            return Ok(None);
        };
        let find = |name: &str| {
            let path = directory.join(name);
            if !path.is_file() {
                bail!("{VARIABLE}: no {name} in {}", directory.display());
            }
            Ok(path)
        };
        Ok(Some(Self {
            driver: find(DRIVER)?,
            registrar: find(REGISTRAR)?,
        }))
    }
}
