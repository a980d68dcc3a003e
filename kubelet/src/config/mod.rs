//! The kubelet's configuration. Flags override drop-ins, which override the file, which overrides
//! upstream's defaults; the result is [`settings::Settings`].

mod capacity_settings;
mod cgroup_settings;
pub mod cluster;
mod configuration_file;
mod eviction_settings;
mod faults;
mod feature_gates;
pub mod flags;
mod flagz;
mod image_settings;
mod isolation_validation;
pub mod kubelet_configuration;
pub mod kubelet_defaults;
pub mod kubelet_validation;
mod log_settings;
pub mod reservation;
mod resource_manager_settings;
pub mod server_settings;
pub mod settings;
pub mod settings_error;
mod shutdown_settings;
pub mod support;
mod system_cpus;
mod trace_settings;
mod values;
