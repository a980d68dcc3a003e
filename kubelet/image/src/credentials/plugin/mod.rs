//! Credential provider plugins: executables that return registry credentials. See
//! <https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/>.

pub mod config;
mod config_file;
mod exec;
pub mod provider;

/// Versions of `credentialprovider.kubelet.k8s.io` that plugins may use.
const API_VERSIONS: &[&str] = &[
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
