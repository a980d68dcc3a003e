//! Hash of the fields of a container's spec whose change requires a new container.

use k8s_openapi::api::core::v1::Container;
use serde::Serialize;

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// The hashed fields, in upstream's order.
#[derive(Serialize)]
struct Hashed<'a> {
    image: &'a str,
    name: &'a str,
}

/// The same hash as upstream's kubelet: FNV-1a of a formatted list of the bytes of a JSON object
/// with image and name. It is stored in annotations of running containers, including those created
/// by an upstream kubelet, so it must never change.
pub fn container_hash(container: &Container) -> u64 {
    let hashed = Hashed {
        image: container.image.as_deref().unwrap_or_default(),
        name: &container.name,
    };
    // Serialising two strings cannot fail.
    let json = serde_json::to_vec(&hashed).unwrap_or_default();
    let bytes: Vec<String> = json.iter().map(u8::to_string).collect();
    let listing = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = listing.bytes().fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)
    });
    hash.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_upstreams_and_depends_on_name_and_image_alone() {
        let mut container = Container {
            name: "test_container".to_owned(),
            image: Some("foo/image:v1".to_owned()),
            ..Container::default()
        };
        // The value in upstream's own test.
        assert_eq!(container_hash(&container), 0x8e45_cbd0);
        container.args = Some(vec!["x".to_owned()]);
        assert_eq!(container_hash(&container), 0x8e45_cbd0);
        container.image = Some("foo/image:v2".to_owned());
        assert_ne!(container_hash(&container), 0x8e45_cbd0);
    }
}
