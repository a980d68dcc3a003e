//! The hash of a static pod's manifest: its UID, and the value of the annotation
//! `kubernetes.io/config.hash`.
//!
//! Upstream hashes the text that Go prints for its internal pod, with defaults. The same text here
//! gives the same UID, so that a node can change between the two kubelets without new containers.
//! The text depends on the fields that the internal types have: those of Kubernetes 1.36.

mod go_types;
mod go_value;
mod internal;
mod quantity;

use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::Pod;

/// The hash of a pod as it is written in its manifest, and of the manifest's place: 32 hexadecimal
/// digits. `place` is what distinguishes equal manifests, such as the node and the file.
///
/// Timestamps in a manifest have no part in it: upstream's text of them depends on the time zone of
/// the machine.
///
/// # Errors
/// The pod is not representable in JSON.
pub fn config_hash(written: &Pod, place: &[u8]) -> serde_json::Result<String> {
    let pod = internal::internal(written)?;
    let mut hash = Fnv1a::new();
    let _ = go_value::write(&mut hash, go_types::POD, &pod);
    hash.update(place);
    Ok(format!("{:032x}", hash.0))
}

/// FNV-1a with 128 bits.
struct Fnv1a(u128);

impl Fnv1a {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    const fn new() -> Self {
        Self(Self::OFFSET_BASIS)
    }

    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        }
    }
}

impl Write for Fnv1a {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.update(text.as_bytes());
        Ok(())
    }
}
