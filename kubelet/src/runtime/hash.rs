//! Hash of the parts of a container's spec that it must be recreated for.

use k8s_openapi::api::core::v1::Container;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a of name and image: what may change in a pod without a new UID. It is
/// kept in the annotations of running containers, so it must never change.
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let parts = [container.name.as_bytes(), b"\0", image.as_bytes()];
    parts.into_iter().flatten().fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_stable_and_depends_on_name_and_image_alone() {
        let mut container = Container {
            name: "web".to_owned(),
            image: Some("busybox:1".to_owned()),
            ..Container::default()
        };
        let hash = container_hash(&container);
        assert_eq!(format!("{hash:x}"), "3beb92e799506026");
        container.args = Some(vec!["x".to_owned()]);
        assert_eq!(container_hash(&container), hash);
        container.image = Some("busybox:2".to_owned());
        assert_ne!(container_hash(&container), hash);
    }
}
