//! This node's certificates: the client certificate for the API server, obtained with a bootstrap
//! token if there is none yet, and the serving certificate. Both are requested with
//! CertificateSigningRequests, stored in `--cert-dir` in upstream's layout, and renewed before they
//! expire.

pub mod client;
mod kubeconfig_file;
pub mod manager;
pub mod metrics;
pub mod pair;
pub mod pem;
pub mod request;
pub mod store;
