//! The version, in the form that Kubernetes tools read.

/// The Kubernetes version whose kubelet API and behaviour this one has, with its
/// own version as build metadata: kubeadm compares the first part.
pub const VERSION: &str = concat!("v1.36.0+", env!("CARGO_PKG_VERSION"));

/// The same in the form in which probes and hooks name their kubelet.
pub const MAJOR_MINOR: &str = "1.36";

/// What `kubelet --version` prints.
pub fn line() -> String {
    format!("Kubernetes {VERSION}")
}

/// What `kubelet --version=raw` prints.
pub fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:\"{VERSION}\", Compiler:\"rustc\", Platform:\"{}/{}\"}}",
        std::env::consts::OS,
        go_arch()
    )
}

/// This machine's architecture as Go, and so Kubernetes, names it.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
