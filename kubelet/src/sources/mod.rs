//! Where pods come from. Each source decodes, defaults and validates manifests with
//! [`kubelet_pod_spec`] and passes its complete set to the mux ([`pod_config`]), which sends the
//! changes as [`update::PodUpdate`]s.

pub mod apiserver;
pub mod file;
pub mod http;
mod http_client;
mod manifests;
pub mod pod_config;
pub mod static_pod;
pub mod update;
mod watch;
