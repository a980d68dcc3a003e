//! The cluster options from the configuration.

use std::{path::Path, time::Duration};

use kubelet_api_client::{
    certificate::client::IdentityOptions, client::RateLimit, objects::ChangeDetection,
};
use kubelet_checkpoint::CheckpointOptions;
use kubelet_node::options::NodeOptions;

use super::{
    capacity_settings::capacity,
    feature_gates::{POD_RESIZE, is_on},
    flags::Flags,
    kubelet_configuration::KubeletConfiguration,
    values::{absolute, span},
};
use crate::cluster::ClusterOptions;

/// The cluster options of a validated configuration; `None` for a standalone kubelet.
pub(super) fn cluster(
    config: &KubeletConfiguration,
    flags: &Flags,
    cert_dir: &Path,
) -> Option<ClusterOptions> {
    let kubeconfig = flags.kubeconfig.as_ref()?;
    let count = |value: i32| u32::try_from(value).unwrap_or_default();
    Some(ClusterOptions {
        identity: IdentityOptions {
            kubeconfig: absolute(kubeconfig),
            bootstrap_kubeconfig: flags.bootstrap_kubeconfig.as_deref().map(absolute),
            cert_dir: cert_dir.to_owned(),
            rotate_certificates: config.rotate_certificates,
            starts_offline: flags.bootstrap_checkpoint_path.is_some(),
        },
        server_tls_bootstrap: config.server_tls_bootstrap,
        rate_limit: RateLimit {
            qps: config.kube_api_qps.map(count).unwrap_or_default(),
            burst: count(config.kube_api_burst),
        },
        event_rate_limit: config
            .event_record_qps
            .map(count)
            .filter(|qps| *qps > 0)
            .map(|qps| RateLimit {
                qps,
                burst: count(config.event_burst),
            }),
        change_detection: match &*config.config_map_and_secret_change_detection_strategy {
            "Get" => ChangeDetection::Get,
            "Cache" => ChangeDetection::Cache,
            _ => ChangeDetection::Watch,
        },
        checkpoint: flags
            .bootstrap_checkpoint_path
            .as_deref()
            .map(|dir| CheckpointOptions {
                dir: absolute(dir),
                key_file: flags.bootstrap_checkpoint_key.as_deref().map(absolute),
            }),
        node: NodeOptions {
            register: config.register_node != Some(false),
            taints: config.register_with_taints.clone(),
            labels: flags.node_labels.clone(),
            provider_id: config.provider_id.clone(),
            external_cloud_provider: flags.external_cloud_provider,
            node_ips: flags.node_ips.clone(),
            status_update_frequency: span(config.node_status_update_frequency),
            status_report_frequency: span(config.node_status_report_frequency),
            lease_duration: Duration::from_secs(u64::from(count(
                config.node_lease_duration_seconds,
            ))),
            // -1 means no limit.
            max_images: config
                .node_status_max_images
                .and_then(|images| usize::try_from(images).ok()),
            port: u16::try_from(config.port).unwrap_or_default(),
            resizes_pods: is_on(config, POD_RESIZE),
            capacity: capacity(config),
        },
    })
}
