//! Images: policies and errors.

use super::row::{Row, contains, one_of, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "image-never",
            "imagePullPolicy Never without the image: ErrImageNeverPull",
            "containers: [{name: c, image: e2e.local/absent:1, imagePullPolicy: Never}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "ErrImageNeverPull")
        .container(
            "c",
            "/state/waiting/message",
            "Container image \"e2e.local/absent:1\" is not present with pull policy of Never",
        ),
        row(
            "image-absent",
            "an image that cannot be pulled: ErrImagePull, then ImagePullBackOff",
            "containers: [{name: c, image: '127.0.0.1:1/absent:1'}]",
        )
        .phase("Pending")
        .container(
            "c",
            "/state/waiting/reason",
            one_of(&["ErrImagePull", "RegistryUnavailable"]),
        )
        .container("c", "/state/waiting/message", contains("127.0.0.1:1"))
        .pod("/status/containerStatuses/0/restartCount", 0)
        .then(|_| Ok(()))
        .container("c", "/state/waiting/reason", "ImagePullBackOff")
        .container(
            "c",
            "/state/waiting/message",
            contains("Back-off pulling image"),
        ),
        row(
            "image-invalid",
            "an invalid name: InvalidImageName",
            "containers: [{name: c, image: 'NOT A NAME'}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "InvalidImageName")
        .container("c", "/state/waiting/message", contains("NOT A NAME")),
        row(
            "image-pulled",
            "imagePullPolicy Always: pulled from a registry",
            "restartPolicy: Never
containers: [{name: c, image: '127.0.0.1:5000/team/app:1', imagePullPolicy: Always, command: [echo, pulled]}]",
        )
        .phase("Succeeded")
        .log("c", "pulled\n"),
        row(
            "image-credentials",
            "credentials from the node's docker config",
            "restartPolicy: Never
containers: [{name: c, image: '127.0.0.1:5001/team/app:1', command: ['true']}]",
        )
        .phase("Succeeded"),
        row(
            "image-provider",
            "credentials from a credential provider plugin",
            "restartPolicy: Never
containers: [{name: c, image: '127.0.0.1:5002/team/app:1', command: ['true']}]",
        )
        .phase("Succeeded"),
        row(
            "image-denied",
            "no credentials: ErrImagePull",
            "containers: [{name: c, image: '127.0.0.1:5003/team/app:1', command: ['true']}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", one_of(&["ErrImagePull", "ImagePullBackOff"]))
        .container("c", "/state/waiting/message", contains("127.0.0.1:5003/team/app:1")),
        row(
            "image-present",
            "IfNotPresent takes the image that is there, without a registry",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, imagePullPolicy: IfNotPresent, command: ['true']}]",
        )
        .phase("Succeeded"),
    ]
}
