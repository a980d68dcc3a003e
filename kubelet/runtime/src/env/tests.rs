//! Tests of variables from all sources, and of their precedence.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_api_client::objects::NoObjects;
use serde_json::{Value, json};

use super::*;

async fn environment_of(container: Value) -> Result<Vec<(String, String)>, EnvError> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "labels": {"app.x/y": "z"}},
        "spec": {"containers": []}
    }))
    .unwrap();
    let container: Container = serde_json::from_value(container).unwrap();
    let placement = Placement {
        node_name: "node",
        host_ips: &[],
        pod_ips: &["10.0.0.2".to_owned(), "fd00::2".to_owned()],
    };
    let sources = EnvSources {
        objects: &NoObjects,
        volumes: &MountedVolumes::default(),
        allocatable: &[("cpu".to_owned(), Quantity("4".to_owned()))].into(),
    };
    environment(&pod, &container, &placement, sources).await
}

#[tokio::test]
async fn references_do_not_take_all_memory() {
    let mut env = vec![json!({"name": "A0", "value": "x"})];
    for level in 1..40 {
        let value = format!("$(A{0})$(A{0})", level - 1);
        env.push(json!({"name": format!("A{level}"), "value": value}));
    }
    let error = environment_of(json!({"name": "c", "env": env}))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("environment variable \"A23\": "),
        "{error}"
    );
}

#[tokio::test]
async fn values_use_earlier_variables_and_fields() {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let env = environment_of(json!({"name": "c", "env": [
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "IPS", "valueFrom": field("status.podIPs")},
        {"name": "LABEL", "valueFrom": field("metadata.labels['app.x/y']")},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "ALL", "value": "$(NAME) $(LABEL) $(LATER)"},
        {"name": "LATER", "value": "1"},
        {"name": "LATER", "value": "2"},
        {"name": "EMPTY"},
    ]}))
    .await
    .unwrap();
    assert_eq!(lookup(&env, "ALL"), Some("web z $(LATER)"));
    assert_eq!(lookup(&env, "IPS"), Some("10.0.0.2,fd00::2"));
    assert_eq!(lookup(&env, "CPUS"), Some("4"));
    assert_eq!(lookup(&env, "LATER"), Some("2"));
    assert_eq!(lookup(&env, "EMPTY"), Some(""));
    let names: Vec<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["NAME", "IPS", "LABEL", "CPUS", "ALL", "LATER", "EMPTY"]
    );
}

#[tokio::test]
async fn what_cannot_be_had_is_named() {
    let source = |source: Value| json!({"name": "c", "env": [{"name": "X", "valueFrom": source}]});
    for (container, message) in [
        (
            source(json!({"fieldRef": {"fieldPath": "status.phase"}})),
            "unsupported fieldPath: status.phase",
        ),
        (
            source(json!({"configMapKeyRef": {"name": "m", "key": "k", "optional": true}})),
            "couldn't get configMap ns/m, no kubeClient defined",
        ),
        (
            json!({"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}),
            "couldn't get secret ns/s, no kubeClient defined",
        ),
        (
            source(json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}})),
            "cannot find the volume \"v\" referenced by FileKeyRef",
        ),
    ] {
        let error = environment_of(container).await.unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
