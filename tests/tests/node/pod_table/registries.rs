//! Registries next to the node, and the kubelet's credentials for them.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::Result;
use e2e::{
    node::Node,
    registry::{PASSWORD, Registry, USER},
};
use serde_json::json;

/// Allows anonymous pulls.
const OPEN: u16 = 5000;
/// Credentials are in the node's docker config.
const IN_CONFIG: u16 = 5001;
/// Credentials come from a credential provider plugin.
const BY_PLUGIN: u16 = 5002;
/// Nothing on the node has credentials.
const CLOSED: u16 = 5003;

/// Starts the registries, each with `team/app:1`, and the kubelet.
pub(crate) async fn start(node: &mut Node) -> Vec<Registry> {
    let mut registries = Vec::new();
    for port in [OPEN, IN_CONFIG, BY_PLUGIN, CLOSED] {
        let dir = node.path(&format!("registry-{port}"));
        let auth = port != OPEN;
        let registry = Registry::start(node.namespace(), &dir, port, auth)
            .await
            .unwrap();
        node.push(&registry, "team/app:1", auth).await.unwrap();
        registries.push(registry);
    }
    write_docker_config(&node.path("kubelet")).unwrap();
    let plugins = node.path("plugins");
    write_plugin(&plugins).unwrap();
    let flags = [
        format!(
            "--image-credential-provider-config={}",
            plugins.join("config.yaml").display()
        ),
        format!("--image-credential-provider-bin-dir={}", plugins.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let configuration = super::CONFIGURATION;
    node.start_kubelet_with(configuration, &flags)
        .await
        .unwrap();
    registries
}

fn write_docker_config(root_dir: &Path) -> Result<()> {
    fs::create_dir_all(root_dir)?;
    let registry = format!("127.0.0.1:{IN_CONFIG}");
    let user = json!({"username": USER, "password": PASSWORD});
    let config = json!({"auths": {registry: user}});
    Ok(fs::write(root_dir.join("config.json"), config.to_string())?)
}

fn write_plugin(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let registry = format!("127.0.0.1:{BY_PLUGIN}");
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "provider",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": [registry.clone()],
            "defaultCacheDuration": "0s",
        }],
    });
    fs::write(dir.join("config.yaml"), config.to_string())?;
    let answer = json!({
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry",
        "auth": {registry: {"username": USER, "password": PASSWORD}},
    });
    let plugin = dir.join("provider");
    fs::write(
        &plugin,
        format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n"),
    )?;
    Ok(fs::set_permissions(
        plugin,
        fs::Permissions::from_mode(0o755),
    )?)
}
