//! Where a machine has csi-driver-host-path and its registrar.

use std::{env, path::PathBuf};

use anyhow::{Result, bail};
use e2e::skips;

/// The environment variable that says where they are.
const VARIABLE: &str = "CSI_HOST_PATH_BIN";

const DRIVER: &str = "hostpathplugin";
const REGISTRAR: &str = "csi-node-driver-registrar";

/// The driver and what registers it.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The driver.
    pub driver: PathBuf,
    /// What tells the kubelet of it.
    pub registrar: PathBuf,
}

impl Programs {
    /// Those in the directory that `CSI_HOST_PATH_BIN` names. Without it there are none, and
    /// `test` is [skipped](skips::skip).
    ///
    /// # Errors
    /// One of them is not in that directory.
    pub fn at_hand(test: &str) -> Result<Option<Self>> {
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
