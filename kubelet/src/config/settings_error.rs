//! Why flags and files are refused.

use std::{io, path::PathBuf};

use kubelet_image::credentials::plugin::config::ProviderConfigError;
use kubelet_pod_spec::yaml::SyntaxError;

/// Why no settings come of flags and files.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or directory cannot be read.
    #[error("cannot read {role} {}: {source}", path.display())]
    Read {
        /// Which file it is meant to be.
        role: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is no YAML, or has fields that the format does not know.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: SyntaxError,
    },
    /// A file is empty or of another kind.
    #[error("{}: {field} is {found:?}; it must be {expected:?}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// What it says.
        found: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A field has a value of another type.
    #[error("invalid configuration: {field}: {message}")]
    Type {
        /// The field's path.
        field: String,
        /// What it should be.
        message: String,
    },
    /// Fields have values that are not allowed.
    #[error("invalid configuration:\n  {}", faults.join("\n  "))]
    Invalid {
        /// Each field, its value and what is allowed.
        faults: Vec<String>,
    },
    /// Credential provider plugins cannot be had as asked for.
    #[error(transparent)]
    CredentialProviders(#[from] ProviderConfigError),
    /// The node has no usable name.
    #[error("{name:?} cannot be the node's name: {rule}; set --hostname-override")]
    NodeName {
        /// The name.
        name: String,
        /// What a name must be.
        rule: &'static str,
    },
    /// The host runs cgroup v1 and the configuration refuses that.
    #[error("this host runs cgroup v1, and failCgroupV1 (--fail-cgroupv1) is true")]
    CgroupV1,
}
