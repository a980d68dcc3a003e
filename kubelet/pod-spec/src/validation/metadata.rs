//! Rules of `metadata`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    field::{Faults, Path},
    names,
};

/// Maximum total size of an object's annotations, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

pub(super) fn validate(metadata: &ObjectMeta, faults: &mut Faults) {
    let path = Path::new("metadata");
    faults.required_text(
        &path.child("name"),
        metadata.name.as_deref().unwrap_or_default(),
        names::dns1123_subdomain,
    );
    faults.required_text(
        &path.child("namespace"),
        metadata.namespace.as_deref().unwrap_or_default(),
        names::dns1123_label,
    );
    // The pod's directories are named by its UID.
    faults.text(
        &path.child("uid"),
        metadata.uid.as_deref().unwrap_or_default(),
        names::path_segment,
    );
    let labels = path.child("labels");
    for (key, value) in metadata.labels.iter().flatten() {
        faults.text(&labels, key, names::qualified_name);
        faults.text(&labels, value, names::label_value);
    }
    let annotations = path.child("annotations");
    let mut size = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        faults.text(&annotations, &key.to_lowercase(), names::qualified_name);
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_LIMIT {
        faults.invalid(
            &annotations,
            size,
            format_args!("must have at most {ANNOTATIONS_LIMIT} bytes in total"),
        );
    }
}
