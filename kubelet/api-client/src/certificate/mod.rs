//! This node's certificates: the one that it shows the API server, got with a bootstrap
//! token where there is none yet, and the one that it serves with. Both are requested
//! with CertificateSigningRequests, kept below `--cert-dir` as upstream keeps them, and
//! renewed before they expire.

pub mod client;
mod kubeconfig_file;
pub mod manager;
pub mod metrics;
pub mod pair;
pub mod pem;
pub mod request;
pub mod store;
