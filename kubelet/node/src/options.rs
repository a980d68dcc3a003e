//! Options of the node object and its reports.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Taint;

use super::capacity::CapacityOptions;

/// Options of the node object and its reports.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOptions {
    /// Register the node (`registerNode`).
    pub register: bool,
    /// Taints at registration (`registerWithTaints`).
    pub taints: Vec<Taint>,
    /// Labels at registration (`--node-labels`).
    pub labels: BTreeMap<String, String>,
    /// The node's ID at the cloud provider (`providerID`); none when empty.
    pub provider_id: String,
    /// Whether a cloud controller initialises the node (`--cloud-provider=external`).
    pub external_cloud_provider: bool,
    /// Configured addresses (`--node-ip`); an unspecified address selects the family of the
    /// detected one.
    pub node_ips: Vec<IpAddr>,
    /// Interval of computing the status (`nodeStatusUpdateFrequency`).
    pub status_update_frequency: Duration,
    /// Interval of reporting it without a change (`nodeStatusReportFrequency`).
    pub status_report_frequency: Duration,
    /// Lease duration (`nodeLeaseDurationSeconds`).
    pub lease_duration: Duration,
    /// Most images in the status (`nodeStatusMaxImages`); no limit when unset.
    pub max_images: Option<usize>,
    /// Port of the kubelet's API (`port`).
    pub port: u16,
    /// Whether pod-level resources are resized in place
    /// (`InPlacePodLevelResourcesVerticalScaling`), which the node declares.
    pub resizes_pods: bool,
    /// Capacity and allocatable.
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
            resizes_pods: true,
            capacity: CapacityOptions::default(),
        }
    }
}
