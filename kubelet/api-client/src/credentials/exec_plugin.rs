//! Credentials from a program that the kubeconfig names (`exec`): a token, a client certificate, or
//! both, as of `client.authentication.k8s.io`. Errors never quote the credentials in its output.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::header::HeaderValue;
use jiff::Timestamp;
use kubelet_host::{
    bounded_program::{self, Limits, ProgramError},
    clock,
    repeatable::blocking,
};
use kubelet_pod_spec::{
    json,
    yaml::{self, DuplicateKeys},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{process::Command, sync::Mutex};

use super::{CredentialsError, bearer};
use crate::{
    identity::{ClientIdentity, certified_key},
    kubeconfig::{Cluster, ExecConfig},
};

const API_VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];
const KIND: &str = "ExecCredential";
/// The extension of a cluster with the plugin's own configuration.
const CONFIG_EXTENSION: &str = "client.authentication.k8s.io/exec";
/// Limits of a plugin. Upstream has none.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    output: 1024 * 1024,
};

/// A program that returns credentials.
#[derive(Debug)]
pub(super) struct ExecPlugin {
    config: ExecConfig,
    /// Passed to the program, if wanted.
    cluster: Option<Cluster>,
    /// Presents the client certificate.
    identity: Arc<ClientIdentity>,
    /// The result of the last run; `None` if there is none, or once it was refused. Locked while
    /// the program runs.
    last: Mutex<Option<Result<ExecCredentials, String>>>,
    /// How often the program has run.
    runs: AtomicU64,
}

#[derive(Debug)]
struct ExecCredentials {
    authorization: Option<HeaderValue>,
    expires: Option<Timestamp>,
}

/// The input and the output of a plugin.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecCredential {
    kind: String,
    api_version: String,
    #[serde(skip_deserializing)]
    spec: ExecCredentialSpec,
    #[serde(skip_serializing)]
    status: Option<ExecCredentialStatus>,
}

#[derive(Debug, Default, Serialize)]
struct ExecCredentialSpec {
    interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ExecCluster>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ExecCluster {
    server: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tls_server_name: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    insecure_skip_tls_verify: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    certificate_authority_data: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    proxy_url: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    config: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// The plugin of a user.
    ///
    /// # Errors
    /// The field that is unusable.
    pub(super) fn new(
        config: &ExecConfig,
        cluster: &Cluster,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, (&'static str, String)> {
        let version = &config.api_version;
        if !API_VERSIONS.contains(&version.as_str()) {
            let known = API_VERSIONS.join(", ");
            return Err((
                "exec.apiVersion",
                format!("{version:?}; supported: {known}"),
            ));
        }
        if config.command.is_empty() {
            return Err(("exec.command", "is required".to_owned()));
        }
        match config.interactive_mode.as_str() {
            "Never" | "IfAvailable" => {}
            "" if version == API_VERSIONS[1] => {}
            "Always" => {
                let message = "\"Always\": the kubelet has no terminal".to_owned();
                return Err(("exec.interactiveMode", message));
            }
            other => {
                let message = format!("{other:?}; supported: Never, IfAvailable");
                return Err(("exec.interactiveMode", message));
            }
        }
        Ok(Self {
            config: config.clone(),
            cluster: config.provide_cluster_info.then(|| cluster.clone()),
            identity,
            last: Mutex::default(),
            runs: AtomicU64::default(),
        })
    }

    /// The `Authorization` header, if there is a token. Runs the program if there are no
    /// credentials, or if they have expired.
    pub(super) async fn header(self: &Arc<Self>) -> Result<Option<HeaderValue>, CredentialsError> {
        let runs = self.runs.load(Ordering::Acquire);
        let this = Arc::clone(self);
        // In a task of its own, so that a request's deadline does not end the program.
        let task = tokio::spawn(async move {
            let mut last = this.last.lock().await;
            match &*last {
                Some(Ok(known)) if known.is_valid() => return Ok(known.authorization.clone()),
                // Requests that waited for the same run share its failure.
                Some(Err(reason)) if this.runs.load(Ordering::Acquire) != runs => {
                    return Err(reason.clone());
                }
                _ => {}
            }
            let new = this.run().await;
            this.runs.fetch_add(1, Ordering::Release);
            let header = match &new {
                Ok(new) => Ok(new.authorization.clone()),
                Err(reason) => Err(reason.clone()),
            };
            *last = Some(new);
            header
        });
        let header = task.await.unwrap_or_else(|error| Err(error.to_string()));
        header.map_err(|reason| CredentialsError::Exec {
            command: self.config.command.clone(),
            reason,
        })
    }

    /// Forgets credentials that were refused, unless there are newer ones already.
    pub(super) async fn forget(&self, refused: Option<&HeaderValue>) {
        let mut last = self.last.lock().await;
        last.take_if(|last| {
            let known = last.as_ref();
            known.is_ok_and(|known| known.authorization.as_ref() == refused)
        });
    }

    async fn run(self: &Arc<Self>) -> Result<ExecCredentials, String> {
        let this = Arc::clone(self);
        let input = blocking(move || this.input()).await;
        let input = input.map_err(|error| error.to_string())??;
        let output = bounded_program::run(self.command(&input)?, &[], LIMITS).await;
        let output = output.map_err(|error| match (&error, self.config.install_hint.trim()) {
            (ProgramError::Io(_), hint) if !hint.is_empty() => format!("{error}\n{hint}"),
            _ => error.to_string(),
        })?;
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, output.error_text()));
        }
        self.credentials(&output.stdout)
    }

    fn command(&self, input: &ExecCredential) -> Result<Command, String> {
        let config = &self.config;
        let input = serde_json::to_string(input).map_err(|error| error.to_string())?;
        let variables = config.env.iter().map(|one| (&one.name, &one.value.0));
        let mut command = Command::new(&config.command);
        command
            .args(&config.args)
            .envs(variables)
            .env("KUBERNETES_EXEC_INFO", input);
        Ok(command)
    }

    fn input(&self) -> Result<ExecCredential, String> {
        let cluster = self.cluster.as_ref().map(|cluster| {
            let authorities = cluster.authorities();
            let authorities = authorities.map_err(|(field, error)| format!("{field}: {error}"))?;
            let mut extensions = cluster.extensions.iter();
            let config = extensions.find(|extension| extension.name == CONFIG_EXTENSION);
            Ok::<_, String>(ExecCluster {
                server: cluster.server.clone(),
                tls_server_name: cluster.tls_server_name.clone(),
                insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
                certificate_authority_data: authorities
                    .map(|text| BASE64_STANDARD.encode(text))
                    .unwrap_or_default(),
                proxy_url: cluster.proxy_url.0.clone(),
                config: config.map_or(Value::Null, |found| found.extension.clone()),
            })
        });
        Ok(ExecCredential {
            kind: KIND.to_owned(),
            api_version: self.config.api_version.clone(),
            spec: ExecCredentialSpec {
                interactive: false,
                cluster: cluster.transpose()?,
            },
            status: None,
        })
    }

    /// Takes the credentials from a program's output; a certificate is presented from now on.
    fn credentials(&self, output: &[u8]) -> Result<ExecCredentials, String> {
        let output = decode(output)?;
        let expected = &self.config.api_version;
        if output.kind != KIND || output.api_version != *expected {
            let (version, kind) = (output.api_version, output.kind);
            return Err(format!(
                "its output is a {kind:?} of {version:?}; expected {KIND:?} of {expected:?}"
            ));
        }
        let status = output.status.ok_or("its output has no status")?;
        let token = status.token.filter(|token| !token.is_empty());
        let certificate = status.client_certificate_data.unwrap_or_default();
        let key = status.client_key_data.unwrap_or_default();
        match (certificate.is_empty(), key.is_empty()) {
            (true, true) if token.is_none() => {
                return Err("it returned neither a token nor a client certificate".to_owned());
            }
            (true, true) => {}
            (false, false) => {
                let key = certified_key(certificate.as_bytes(), key.as_bytes());
                let key = key.map_err(|error| format!("client certificate: {error}"))?;
                if !self.identity.shows(&key) {
                    self.identity.replace(Arc::new(key));
                }
            }
            _ => return Err("it returned a client certificate or key without the other".to_owned()),
        }
        let authorization = token.map(|token| bearer(&token)).transpose();
        Ok(ExecCredentials {
            authorization: authorization.map_err(|error| format!("token: {error}"))?,
            expires: status.expiration_timestamp,
        })
    }
}

impl ExecCredentials {
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|expires| clock::now() < expires)
    }
}

/// Decodes an output in JSON or YAML, as upstream.
fn decode(output: &[u8]) -> Result<ExecCredential, String> {
    let invalid = |at: &str| format!("its output is not an {KIND}{at}");
    let text = std::str::from_utf8(output).map_err(|_| invalid(""))?;
    let documents = yaml::documents(text, DuplicateKeys::LastWins)
        .map_err(|error| invalid(&format!(": line {}, column {}", error.line, error.column)))?;
    let mut document = documents.into_iter().next().unwrap_or_default();
    yaml::remove_nulls(&mut document);
    json::from_value(&document).map_err(|error| invalid(&format!(": {}", error.path)))
}
