//! References of static pods, and annotations that the API server would check.

use serde_json::json;

use super::{container, faults, one};

#[test]
fn what_only_the_api_server_knows_is_refused() {
    one(
        faults(&[("/spec/volumes/0/secret", json!({"secretName": "s"}))]),
        "spec.volumes[0].secret: Forbidden: static pods may not reference secrets",
    );
    one(
        container("envFrom", json!([{"configMapRef": {"name": "c"}}])),
        "spec.containers[0].envFrom[0].configMapRef: Forbidden: static pods may not reference configmaps",
    );
    one(
        faults(&[(
            "/spec/volumes/0/projected",
            json!({"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        )]),
        "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts",
    );
    one(
        faults(&[(
            "/spec/volumes/0/projected",
            json!({"sources": [{"clusterTrustBundle": {"name": "b", "path": "ca.pem"}}]}),
        )]),
        "spec.volumes[0].projected.sources[0].clusterTrustBundle: Forbidden: static pods may not reference clustertrustbundles",
    );
}

#[test]
fn a_static_pod_may_name_no_secrets_and_claims() {
    let spec = [
        ("/spec/imagePullSecrets", json!([{}])),
        ("/spec/resourceClaims", json!([])),
    ];
    assert_eq!(faults(&spec), Vec::<String>::new());
    one(
        faults(&[("/spec/imagePullSecrets", json!([{"name": "s"}]))]),
        "spec.imagePullSecrets: Forbidden: static pods may not reference secrets",
    );
}

#[test]
fn annotations_confine_the_containers_that_they_name() {
    let annotated = |container: &str, profile: &str| {
        let key = format!("container.apparmor.security.beta.kubernetes.io/{container}");
        faults(&[("/metadata/annotations", json!({key: profile}))])
    };
    for profile in ["", "runtime/default", "unconfined", "localhost/p"] {
        assert_eq!(annotated("web", profile), Vec::<String>::new());
    }
    one(
        annotated("web", "locahost/p"),
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/web]: Invalid value: \"locahost/p\": invalid AppArmor profile name",
    );
    one(
        annotated("x", "unconfined"),
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: \"x\": container not found",
    );
}
