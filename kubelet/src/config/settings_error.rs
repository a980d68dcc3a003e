//! Errors of flags and configuration files.

use std::{io, path::PathBuf};

use kubelet_image::credentials::plugin::config::ProviderConfigError;
use kubelet_pod_spec::yaml::SyntaxError;

/// Why the settings cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or directory cannot be read.
    #[error("cannot read {role} {}: {source}", path.display())]
    Read {
        /// The role of the file.
        role: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not valid YAML, or has fields that are unknown.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Position and error.
        source: SyntaxError,
    },
    /// A file is empty or of another kind.
    #[error("{}: {field} is {found:?}; it must be {expected:?}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// The value found.
        found: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A field has a value of the wrong type.
    #[error("invalid configuration: {field}: {message}")]
    Type {
        /// The field's path.
        field: String,
        /// The error, with the expected type.
        message: String,
    },
    /// Fields have values that are not allowed.
    #[error("invalid configuration:\n  {}", faults.join("\n  "))]
    Invalid {
        /// For each: field, value and what is allowed.
        faults: Vec<String>,
    },
    /// The credential provider plugins are misconfigured.
    #[error(transparent)]
    CredentialProviders(#[from] ProviderConfigError),
    /// The node's name is not valid.
    #[error("invalid node name {name:?}: {rule}; set --hostname-override")]
    NodeName {
        /// The name.
        name: String,
        /// The rule that names must follow.
        rule: &'static str,
    },
    /// The host runs cgroup v1 and the configuration refuses that.
    #[error("this host runs cgroup v1, and failCgroupV1 (--fail-cgroupv1) is true")]
    CgroupV1,
}
