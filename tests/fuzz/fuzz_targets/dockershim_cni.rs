//! Any JSON as what a plugin answers, as a network's configuration and as what another
//! runtime remembers of an attachment.
#![no_main]

use dockershim::network::cni::{cache::CachedAttachment, config::NetworkConfig, result};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for read in [NetworkConfig::from_list, NetworkConfig::from_single] {
        if let Ok(config) = read(bytes) {
            config.collects_garbage();
            config.wants("portMappings");
        }
    }
    let Ok(value) = serde_json::from_slice(bytes) else {
        return;
    };
    if let Ok(addresses) = result::addresses(&value, "eth0") {
        let status = result::to_status(&addresses);
        let told = status.additional_ips.len() + usize::from(!status.ip.is_empty());
        assert_eq!(told, addresses.len());
    }
    if let Ok(cached) = serde_json::from_value::<CachedAttachment>(value) {
        let (attachment, _) = cached.of(None);
        assert_eq!(attachment.container_id, cached.key().container_id);
        let written = serde_json::to_value(&cached).unwrap();
        assert_eq!(
            serde_json::from_value::<CachedAttachment>(written).unwrap(),
            cached
        );
    }
});
