//! The images on the node.

use cri_proto::runtime::v1 as cri;

use super::{World, scatter};
use crate::image_names::{normalised, resolved};

impl World {
    pub(crate) fn add_image(&mut self, reference: &str) -> String {
        let reference = normalised(reference);
        let id = image_id(&reference);
        let image = self.images.entry(id.clone()).or_insert_with(|| cri::Image {
            id: id.clone(),
            size: 1 << 20,
            ..cri::Image::default()
        });
        let names = if reference.contains('@') {
            &mut image.repo_digests
        } else {
            &mut image.repo_tags
        };
        if !names.contains(&reference) {
            names.push(reference);
        }
        id
    }

    /// Puts an image on the node as a pull does: it has a digest too.
    pub(crate) fn pull_image(&mut self, reference: &str) -> String {
        let id = self.add_image(reference);
        if let Some(image) = self.images.get_mut(&id) {
            let digest = resolved(&normalised(reference), &id);
            if !image.repo_digests.contains(&digest) {
                image.repo_digests.push(digest);
            }
        }
        id
    }

    /// Finds an image by id or reference.
    pub(crate) fn image(&self, name: &str) -> Option<&cri::Image> {
        self.images.get(name).or_else(|| {
            let name = normalised(name);
            self.images
                .values()
                .find(|image| image.repo_tags.contains(&name) || image.repo_digests.contains(&name))
        })
    }
}

fn image_id(reference: &str) -> String {
    let seed = reference.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(
        "sha256:{:016x}{:016x}{:016x}{:016x}",
        scatter(seed),
        scatter(seed ^ 1),
        scatter(seed ^ 2),
        scatter(seed ^ 3)
    )
}
