//! What the kubelet is told: its own configuration, and the pods to run.
//!
//! Configuration: flags ([`crate::cli`]) over drop-ins over the file over
//! upstream's defaults make [`settings::Settings`]. Pods: [`source`]s read
//! [`manifest`]s, set [`defaults`], check them ([`validation`]) and hand the whole
//! set that they know to the mux ([`pod_config`]), which tells the kubelet what
//! changed as [`update::PodUpdate`]s.

pub mod cluster;
mod configuration_file;
pub(crate) mod host;
mod image_settings;
mod isolation_validation;
pub mod kubelet_configuration;
pub mod kubelet_defaults;
pub mod kubelet_validation;
mod log_settings;
pub mod options;
pub mod pod_config;
pub mod reservation;
pub mod server_settings;
pub mod settings;
mod shutdown_settings;
pub mod source;
pub mod support;
mod system_cpus;
pub mod update;
