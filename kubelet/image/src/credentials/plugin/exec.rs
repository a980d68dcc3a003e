//! A single run of a plugin: the request goes to its standard input, and the response comes from
//! its standard output.

use std::{collections::BTreeMap, time::Duration};

use go_duration::GoDuration;
use kubelet_host::bounded_program::{self, Limits, ProgramError};
use kubelet_pod_spec::json::from_slice;
use registry_credentials::{Credential, docker_config::DockerConfig};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::config::CredentialProvider;

/// Limits of a run. Upstream has the same deadline.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    output: 1024 * 1024,
};

/// A request to a plugin. Must not be printed, because it contains a token.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// The repository.
    pub(super) image: String,
    /// Token of the pod's service account, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) service_account_token: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) service_account_annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    kind: &'static str,
    api_version: &'a str,
    #[serde(flatten)]
    request: &'a Request,
}

/// The response of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) scope: CacheScope,
    /// How long the response may be cached; `None` for the configured default.
    pub(super) cache_duration: Option<Duration>,
    pub(super) auth: DockerConfig,
}

/// What a cached response is valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheScope {
    Image,
    Registry,
    Global,
}

/// Why a plugin returned no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExecError {
    #[error("cannot run {program}: {message}")]
    Spawn { program: String, message: String },
    #[error("no response from {program} within {:?}", LIMITS.time)]
    Deadline { program: String },
    #[error("the response of {program} is longer than {} bytes", LIMITS.output)]
    TooLong { program: String },
    #[error("{program}: {status}: {stderr}")]
    Failed {
        program: String,
        status: String,
        stderr: String,
    },
    /// Never quotes the response, which contains passwords.
    #[error("the response of {program} is not a CredentialProviderResponse")]
    Response { program: String },
    #[error("{program} responded with apiVersion {found:?}; it must be {expected:?}")]
    ApiVersion {
        program: String,
        found: String,
        expected: String,
    },
    #[error(
        "{program} did not return a valid cacheKeyType: {found:?}; it must be Image, Registry or Global"
    )]
    CacheKeyType { program: String, found: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ResponseJson {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    auth: Option<BTreeMap<String, Auth>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Auth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Runs a plugin once.
pub(super) async fn exec(
    provider: CredentialProvider,
    request: Request,
) -> Result<Response, ExecError> {
    let program = provider.program.display().to_string();
    let spawn = |message: String| ExecError::Spawn {
        program: program.clone(),
        message,
    };
    let envelope = Envelope {
        kind: "CredentialProviderRequest",
        api_version: &provider.api_version,
        request: &request,
    };
    let input = serde_json::to_vec(&envelope).map_err(|error| spawn(error.to_string()))?;
    let mut command = Command::new(&provider.program);
    command
        .args(&provider.args)
        .envs(provider.env.iter().map(|(name, value)| (name, value)));
    let output = match bounded_program::run(command, &input, LIMITS).await {
        Ok(output) => output,
        Err(ProgramError::Io(error)) => return Err(spawn(error.to_string())),
        Err(ProgramError::Time(_)) => return Err(ExecError::Deadline { program }),
        Err(ProgramError::Output(_)) => return Err(ExecError::TooLong { program }),
    };
    if !output.status.success() {
        return Err(ExecError::Failed {
            program,
            status: output.status.to_string(),
            stderr: output.error_text(),
        });
    }
    response(&program, &provider.api_version, &output.stdout)
}

fn response(program: &str, version: &str, json: &[u8]) -> Result<Response, ExecError> {
    let program = || program.to_owned();
    let invalid = |_| ExecError::Response { program: program() };
    let meta: TypeMeta = from_slice(json).map_err(invalid)?;
    if meta.api_version != version {
        return Err(ExecError::ApiVersion {
            program: program(),
            found: meta.api_version,
            expected: version.to_owned(),
        });
    }
    let answer: ResponseJson = from_slice(json).map_err(invalid)?;
    if answer.kind != "CredentialProviderResponse" {
        return Err(ExecError::Response { program: program() });
    }
    let scope = match answer.cache_key_type.as_str() {
        "Image" => CacheScope::Image,
        "Registry" => CacheScope::Registry,
        "Global" => CacheScope::Global,
        other => {
            return Err(ExecError::CacheKeyType {
                program: program(),
                found: other.to_owned(),
            });
        }
    };
    let auth = answer.auth.unwrap_or_default().into_iter();
    let auth = auth.map(|(registry, auth)| {
        let credential = Credential {
            username: auth.username,
            password: auth.password,
            ..Credential::default()
        };
        (registry, credential)
    });
    Ok(Response {
        scope,
        // A negative duration counts as zero: the response is not cached.
        cache_duration: answer
            .cache_duration
            .map(|duration| duration.to_std().unwrap_or_default()),
        auth: auth.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn answer(rest: &str) -> Result<Response, ExecError> {
        let json =
            format!(r#"{{"apiVersion": "{V1}", "kind": "CredentialProviderResponse"{rest}}}"#);
        response("p", V1, json.as_bytes())
    }

    #[test]
    fn answers_are_read_strictly() {
        let full = r#", "cacheKeyType": "Registry", "cacheDuration": "5m0s",
            "auth": {"*.example": {"username": "u", "password": "hidden"}}"#;
        let response = answer(full).unwrap();
        assert_eq!(response.scope, CacheScope::Registry);
        assert_eq!(response.cache_duration, Some(Duration::from_secs(300)));
        assert_eq!(response.auth["*.example"].password, "hidden");
        for (rest, fault) in [
            ("", "did not return a valid cacheKeyType: \"\""),
            (r#", "cacheKeyType": "x""#, "a valid cacheKeyType: \"x\""),
            (
                r#", "auth": "hidden""#,
                "is not a CredentialProviderResponse",
            ),
            (
                r#", "password": "hidden""#,
                "is not a CredentialProviderResponse",
            ),
        ] {
            let message = answer(rest).unwrap_err().to_string();
            assert!(message.contains(fault), "{message}");
            assert!(!message.contains("hidden"), "{message}");
        }
        let error = super::response("p", "other/v1", b"{}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "p responded with apiVersion \"\"; it must be \"other/v1\""
        );
    }
}
