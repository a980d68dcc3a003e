//! What this node's object says, and how often.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Taint;

use super::capacity::CapacityOptions;

/// What the node's object says, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOptions {
    /// Create the object (`registerNode`).
    pub register: bool,
    /// Its taints when it is created (`registerWithTaints`).
    pub taints: Vec<Taint>,
    /// Its labels when it is created (`--node-labels`).
    pub labels: BTreeMap<String, String>,
    /// Its name at the cloud provider (`providerID`); none when empty.
    pub provider_id: String,
    /// Whether a cloud controller completes the object (`--cloud-provider=external`).
    pub external_cloud_provider: bool,
    /// Addresses that were given (`--node-ip`); the unspecified one of a family asks for
    /// that family's own.
    pub node_ips: Vec<IpAddr>,
    /// How often the status is computed (`nodeStatusUpdateFrequency`).
    pub status_update_frequency: Duration,
    /// How often it is reported without a change (`nodeStatusReportFrequency`).
    pub status_report_frequency: Duration,
    /// How long a lease lasts (`nodeLeaseDurationSeconds`).
    pub lease_duration: Duration,
    /// Most images in the status (`nodeStatusMaxImages`); all when unset.
    pub max_images: Option<usize>,
    /// Port of the kubelet's API (`port`).
    pub port: u16,
    /// What of the node pods get.
    pub capacity: CapacityOptions,
}

impl Default for NodeOptions {
    /// Upstream's defaults, with nothing reserved.
    fn default() -> Self {
        Self {
            register: true,
            taints: Vec::new(),
            labels: BTreeMap::new(),
            provider_id: String::new(),
            external_cloud_provider: false,
            node_ips: Vec::new(),
            status_update_frequency: Duration::from_secs(10),
            status_report_frequency: Duration::from_secs(300),
            lease_duration: Duration::from_secs(40),
            max_images: Some(50),
            port: 10250,
            capacity: CapacityOptions::default(),
        }
    }
}
