//! Static pods: forbidden fields and errors.

use super::row::{Row, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "refused-config-map",
            "a static pod may not name a config map",
            "containers: [{name: c, image: IMAGE, envFrom: [{configMapRef: {name: x}}]}]",
        )
        .said("static pods may not reference configmaps"),
        row(
            "refused-secret-volume",
            "a static pod may not name a secret",
            "containers: [{name: c, image: IMAGE}]
volumes: [{name: v, secret: {secretName: x}}]",
        )
        .said("spec.volumes[0].secret"),
        row(
            "refused-field",
            "a field that is wrong is named with its path",
            "containers: [{name: c, image: IMAGE, livenessProbe: {exec: {command: [x]}, periodSeconds: -1}}]",
        )
        .said("spec.containers[0].livenessProbe.periodSeconds"),
        row(
            "refused-two-names",
            "two containers of one name",
            "containers: [{name: c, image: IMAGE}, {name: c, image: IMAGE}]",
        )
        .said("spec.containers[1].name"),
        row(
            "refused-volume",
            "a mount of a volume that the pod does not have",
            "containers: [{name: c, image: IMAGE, volumeMounts: [{name: none, mountPath: /v}]}]",
        )
        .said("spec.containers[0].volumeMounts[0].name"),
    ]
}
