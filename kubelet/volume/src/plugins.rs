//! The supported kinds of volumes.

use std::sync::Arc;

use kubelet_api_client::tokens::TokenCache;

use super::{
    VolumeHost,
    config_map::ConfigMap,
    csi::{Csi, DriverStore},
    downward_api::DownwardApi,
    empty_dir::EmptyDir,
    host_path::HostPath,
    image::Image,
    local::Local,
    nfs::Nfs,
    plugin::VolumePlugin,
    projected::Projected,
    secret::Secret,
    trust_bundles::Order,
};

/// One plugin per kind; CSI volumes use the registered `drivers`.
pub fn all(host: &VolumeHost, drivers: Arc<DriverStore>) -> Vec<Arc<dyn VolumePlugin>> {
    let host = || host.clone();
    let tokens = Arc::<TokenCache>::default();
    vec![
        Arc::new(EmptyDir { host: host() }),
        Arc::new(HostPath),
        Arc::new(ConfigMap { host: host() }),
        Arc::new(Secret { host: host() }),
        Arc::new(DownwardApi { host: host() }),
        Arc::new(Projected {
            host: host(),
            tokens: Arc::clone(&tokens),
            order: Order::of_this_run(),
        }),
        Arc::new(Image),
        Arc::new(Local { host: host() }),
        Arc::new(Nfs { host: host() }),
        Arc::new(Csi {
            host: host(),
            tokens,
            drivers,
        }),
    ]
}
