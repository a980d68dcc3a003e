//! What the kubelet is told: its own configuration, and the pods to run.
//!
//! Configuration: flags ([`crate::cli`]) override drop-ins, which override the file, which
//! overrides upstream's defaults; the result is [`settings::Settings`]. Pods: each [`source`]
//! decodes, defaults and validates manifests with [`kubelet_pod_spec`] and passes its complete set
//! to the mux ([`pod_config`]), which sends the changes as [`update::PodUpdate`]s.

pub mod cluster;
mod configuration_file;
pub(crate) mod host;
mod image_settings;
mod isolation_validation;
pub mod kubelet_configuration;
pub mod kubelet_defaults;
pub mod kubelet_validation;
mod log_settings;
pub mod pod_config;
pub mod reservation;
pub mod server_settings;
pub mod settings;
mod shutdown_settings;
pub mod source;
pub mod support;
mod system_cpus;
pub mod update;
