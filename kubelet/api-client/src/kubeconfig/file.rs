//! The format of a kubeconfig: the fields that matter to a client. Unknown fields are ignored, as
//! upstream.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use serde_json::Value;

/// A kubeconfig file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct KubeconfigFile {
    pub(super) current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

/// A cluster and a user.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    pub(super) cluster: String,
    pub(super) user: String,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

/// A cluster: how to reach its API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cluster {
    /// URL of the API server.
    pub server: String,
    /// The name that the server's certificate must have, instead of the URL's host.
    pub tls_server_name: String,
    /// Whether any server certificate is accepted.
    pub insecure_skip_tls_verify: bool,
    /// File with the certificate authorities, in PEM.
    pub certificate_authority: String,
    /// The certificate authorities in PEM, as base64; takes precedence over the file.
    pub certificate_authority_data: String,
    /// URL of a proxy, instead of those of the environment. It may contain a password.
    pub(crate) proxy_url: Secret,
    pub(crate) extensions: Vec<Extension>,
}

/// Data for other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Extension {
    pub(crate) name: String,
    pub(crate) extension: Value,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

/// A user's credentials.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct User {
    pub(crate) client_certificate: String,
    pub(crate) client_certificate_data: String,
    pub(crate) client_key: String,
    pub(crate) client_key_data: Secret,
    pub(crate) token: Secret,
    #[serde(rename = "tokenFile")]
    pub(crate) token_file: String,
    pub(crate) username: String,
    pub(crate) password: Secret,
    #[serde(rename = "as")]
    pub(crate) impersonate: String,
    #[serde(rename = "as-uid")]
    pub(crate) impersonate_uid: String,
    #[serde(rename = "as-groups")]
    pub(crate) impersonate_groups: Vec<String>,
    #[serde(rename = "as-user-extra")]
    pub(crate) impersonate_extra: BTreeMap<String, Vec<String>>,
    pub(crate) exec: Option<ExecConfig>,
    /// Credentials from a plugin within the client; not supported.
    pub(crate) auth_provider: Option<AuthProvider>,
}

/// A program that returns credentials.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ExecConfig {
    pub(crate) api_version: String,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<ExecVariable>,
    pub(crate) install_hint: String,
    pub(crate) interactive_mode: String,
    pub(crate) provide_cluster_info: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ExecVariable {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: Secret,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AuthProvider {
    pub(crate) name: String,
}

/// A text that is not shown, neither in logs nor in errors.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

impl SecretVisitor {
    fn not_a_string<E: de::Error>() -> E {
        E::custom("is not a string")
    }
}

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
        Err(Self::not_a_string())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(Self::not_a_string())
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(Self::not_a_string())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(Self::not_a_string())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl KubeconfigFile {
    pub(super) fn context(&self, name: &str) -> Option<&Context> {
        let mut contexts = self.contexts.iter();
        Some(&contexts.find(|named| named.name == name)?.context)
    }

    pub(super) fn cluster(&self, name: &str) -> Option<&Cluster> {
        let mut clusters = self.clusters.iter();
        Some(&clusters.find(|named| named.name == name)?.cluster)
    }

    pub(super) fn user(&self, name: &str) -> Option<&User> {
        let mut users = self.users.iter();
        Some(&users.find(|named| named.name == name)?.user)
    }
}

impl Cluster {
    /// URL of the API server. As upstream, one without a scheme is `https` if the cluster has a
    /// certificate authority, or needs none.
    pub(super) fn url(&self) -> String {
        let server = &self.server;
        let has_tls = self.insecure_skip_tls_verify
            || !self.certificate_authority.is_empty()
            || !self.certificate_authority_data.is_empty();
        match (server.contains("://"), has_tls) {
            (true, _) => server.clone(),
            (false, true) => format!("https://{server}"),
            (false, false) => format!("http://{server}"),
        }
    }
}

impl Cluster {
    /// Resolves relative paths against the directory of the file.
    pub(super) fn make_absolute(&mut self, dir: &Path) {
        make_absolute(dir, &mut self.certificate_authority);
    }
}

impl User {
    /// Resolves relative paths against the directory of the file. A command without a slash is
    /// looked up in `PATH`, as upstream.
    pub(super) fn make_absolute(&mut self, dir: &Path) {
        make_absolute(dir, &mut self.client_certificate);
        make_absolute(dir, &mut self.client_key);
        make_absolute(dir, &mut self.token_file);
        if let Some(exec) = &mut self.exec
            && exec.command.contains('/')
        {
            make_absolute(dir, &mut exec.command);
        }
    }
}

fn make_absolute(dir: &Path, path: &mut String) {
    if !path.is_empty() {
        *path = dir.join(&*path).to_string_lossy().into_owned();
    }
}
