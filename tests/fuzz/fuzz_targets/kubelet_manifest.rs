//! Any text as a manifest: it is refused with words or makes static pods, which are the same
//! when they are written down and read again.
#![no_main]

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kubelet::sources::static_pod::{Origin, static_pod};
use kubelet_pod_spec::manifest::decode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let manifest = match decode(bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let origin = Origin::File(Path::new("/etc/kubernetes/manifests/pod.yaml"));
    for pod in manifest.pods {
        match static_pod(pod, origin, "node") {
            Ok(pod) => {
                let written = k8s_openapi::serde_json::to_vec(&pod).unwrap();
                let read: Pod = k8s_openapi::serde_json::from_slice(&written).unwrap();
                assert_eq!(read, pod);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
