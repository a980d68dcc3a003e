//! Which images are in use.

use std::collections::{BTreeMap, BTreeSet};

use cri_proto::runtime::v1;
use image_reference::{ImageReference, is_image_id};

/// The IDs of the node's images by each of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(BTreeMap<String, BTreeSet<String>>);

impl Names {
    pub(super) fn new(images: &[v1::Image]) -> Self {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |name: String, id: &str| {
            names.entry(name).or_default().insert(id.to_owned());
        };
        for image in images {
            add(image.id.clone(), &image.id);
            // Some runtimes report the ID of a container's image without its algorithm.
            if let Some((_, hex)) = image.id.split_once(':')
                && is_image_id(hex)
            {
                add(hex.to_owned(), &image.id);
            }
            for name in image.repo_tags.iter().chain(&image.repo_digests) {
                add(full_name(name), &image.id);
            }
        }
        Self(names)
    }

    /// The images that an ID, a name or a digest refers to. One name may belong to several images
    /// if the runtime has one for each handler.
    fn find(&self, reference: &str) -> impl Iterator<Item = &String> {
        let found = self.0.get(reference);
        let found = found.or_else(|| self.0.get(&full_name(reference)));
        found.into_iter().flatten()
    }
}

/// The name with registry and tag, or with its digest instead of the tag: a runtime lists digests
/// without tags. What is not a valid name is unchanged.
fn full_name(name: &str) -> String {
    let Ok(reference) = ImageReference::parse(name) else {
        return name.to_owned();
    };
    let repository = reference.repository();
    match reference.digest() {
        Some(digest) => format!("{repository}@{digest}"),
        None => format!("{repository}:{}", reference.tag().unwrap_or("latest")),
    }
}

/// The images in use.
#[derive(Clone, Debug, Default)]
pub(super) struct InUse {
    /// The runtime handlers that use each image; empty for any handler.
    handlers: BTreeMap<String, BTreeSet<String>>,
}

impl InUse {
    /// The images of all containers, in whatever state.
    pub(super) fn by_containers(names: &Names, containers: &[v1::Container]) -> Self {
        let mut in_use = Self::default();
        for container in containers {
            let spec = container.image.as_ref();
            let handler = spec.map_or("", |spec| spec.runtime_handler.as_str());
            // The first that is known, as upstream: older runtimes report no ID. What the container
            // was created from may be the name of another image by now.
            let references = [
                container.image_id.as_str(),
                container.image_ref.as_str(),
                spec.map_or("", |spec| spec.image.as_str()),
            ];
            let known = references.into_iter().filter(|text| !text.is_empty());
            let known = known.map(|text| names.find(text).collect::<Vec<_>>());
            for id in known
                .into_iter()
                .find(|ids| !ids.is_empty())
                .unwrap_or_default()
            {
                in_use.add(id, handler);
            }
        }
        in_use
    }

    /// Adds the images that a reference may mean, for any handler.
    pub(super) fn add_reference(&mut self, names: &Names, reference: &str) {
        for id in names.find(reference) {
            self.add(id, "");
        }
    }

    fn add(&mut self, id: &str, handler: &str) {
        let handlers = self.handlers.entry(id.to_owned()).or_default();
        handlers.insert(handler.to_owned());
    }

    /// Whether the image with this ID, pulled for this handler, is in use. A runtime may report
    /// handlers only for images or only for containers.
    pub(super) fn contains(&self, id: &str, handler: &str) -> bool {
        self.handlers.get(id).is_some_and(|handlers| {
            handler.is_empty() || handlers.contains("") || handlers.contains(handler)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> v1::Image {
        v1::Image {
            id: id.to_owned(),
            repo_tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            repo_digests: digests.iter().map(|&digest| digest.to_owned()).collect(),
            ..v1::Image::default()
        }
    }

    fn container(image_id: &str, image_ref: &str, image: &str, handler: &str) -> v1::Container {
        v1::Container {
            image_id: image_id.to_owned(),
            image_ref: image_ref.to_owned(),
            image: Some(v1::ImageSpec {
                image: image.to_owned(),
                runtime_handler: handler.to_owned(),
                ..v1::ImageSpec::default()
            }),
            ..v1::Container::default()
        }
    }

    #[test]
    fn a_container_uses_the_first_image_that_it_names() {
        let digest = format!("docker.io/library/a@sha256:{:064}", 1);
        let hex = "c".repeat(64);
        let names = Names::new(&[
            image(&format!("sha256:{hex}"), &[], &[]),
            image("sha256:a", &["docker.io/library/a:1"], &[&digest]),
            image("sha256:b", &["docker.io/library/b:latest"], &[]),
        ]);
        let used = |container| {
            let in_use = InUse::by_containers(&names, &[container]);
            in_use.handlers.into_keys().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(used(container("sha256:a", "sha256:b", "b", "")), "sha256:a");
        assert_eq!(used(container(&hex, "", "", "")), format!("sha256:{hex}"));
        assert_eq!(used(container("", &digest, "b", "")), "sha256:a");
        assert_eq!(used(container("sha256:gone", &digest, "b", "")), "sha256:a");
        assert_eq!(used(container("", "", "b", "")), "sha256:b");
        assert_eq!(used(container("sha256:gone", "c:1", "c:1", "")), "");
        assert_eq!(used(v1::Container::default()), "");
    }

    #[test]
    fn references_are_those_of_specs() {
        let digest = format!("sha256:{:064}", 1);
        let names = Names::new(&[image(
            "sha256:a",
            &["docker.io/library/a:1"],
            &[&format!("docker.io/library/a@{digest}")],
        )]);
        for (reference, is_found) in [
            ("a:1".to_owned(), true),
            ("docker.io/library/a:1".to_owned(), true),
            (format!("a:2@{digest}"), true),
            ("sha256:a".to_owned(), true),
            ("a".to_owned(), false),
            ("a:2".to_owned(), false),
            (String::new(), false),
        ] {
            let mut in_use = InUse::default();
            in_use.add_reference(&names, &reference);
            assert_eq!(in_use.contains("sha256:a", "any"), is_found, "{reference}");
        }
    }

    #[test]
    fn an_image_is_used_by_its_handler() {
        let names = Names::new(&[image("i", &[], &[])]);
        let by = |handler| InUse::by_containers(&names, &[container("i", "", "", handler)]);
        assert!(by("kata").contains("i", "kata"));
        assert!(!by("kata").contains("i", "runc"));
        assert!(by("kata").contains("i", ""), "images have no handlers");
        assert!(by("").contains("i", "runc"), "containers have no handlers");
        assert!(!by("").contains("j", ""));
    }
}
