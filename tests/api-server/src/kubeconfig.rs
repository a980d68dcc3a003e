//! Kubeconfigs for the API servers of the tests, in JSON, which is valid YAML.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::signing::Identity;

/// A kubeconfig with a client certificate, for the server at this address. `authority` (PEM) has
/// signed the server's certificate.
pub fn with_certificate(address: &str, authority: &str, identity: &Identity) -> String {
    let user = json!({
        "client-certificate-data": STANDARD.encode(&identity.certificate),
        "client-key-data": STANDARD.encode(&identity.key),
    });
    of(address, authority, &user)
}

/// A kubeconfig with a bearer token, for the server at this address. `authority` (PEM) has signed
/// the server's certificate.
pub fn with_token(address: &str, authority: &str, token: &str) -> String {
    of(address, authority, &json!({"token": token}))
}

fn of(address: &str, authority: &str, user: &Value) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{address}"),
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    config.to_string()
}
