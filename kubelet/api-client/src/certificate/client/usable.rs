//! Checks whether a kubeconfig has a valid client certificate.

use std::path::Path;

use kubelet_host::clock;

use crate::{
    certificate::{manager::holds, pair::Pair},
    kubeconfig::ClusterAccess,
};

/// Why a kubeconfig is not used.
#[derive(Debug)]
pub(super) struct Unusable {
    /// A message for the log.
    pub(super) reason: String,
    /// The kubeconfig, if its only fault is an expired certificate.
    pub(super) expired: Option<Box<ClusterAccess>>,
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Self {
            reason,
            expired: None,
        }
    }
}

/// Reads a kubeconfig whose user has an unexpired certificate.
pub(super) fn usable(path: &Path) -> Result<ClusterAccess, Unusable> {
    let access = ClusterAccess::read(path).map_err(|error| error.to_string())?;
    let Some(source) = &access.pair else {
        return Err("it has no client certificate".to_owned().into());
    };
    let (certificate, key) = source
        .read()
        .map_err(|(field, error)| format!("{field}: {error}"))?;
    let pair = Pair::parse(&certificate, &key).map_err(|error| error.to_string())?;
    if !holds(&pair, clock::now()) {
        return Err(Unusable {
            reason: format!("its certificate expired at {}", pair.facts.not_after),
            expired: Some(Box::new(access)),
        });
    }
    Ok(access)
}
