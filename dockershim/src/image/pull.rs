//! `PullImage`.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cri_proto::runtime::v1::{AuthConfig, PullImageRequest, PullImageResponse};
use futures::FutureExt as _;
use tonic::Code;

use super::status::named;
use crate::{
    Error, Shim,
    engine::{Cause, Credentials, EngineError},
    images::{
        Reference,
        pulls::{Pull, PullCause, PullFailure, PullKey},
    },
};

/// Pulls the image by tag or digest and returns its id.
///
/// # Errors
/// `InvalidArgument` for an invalid reference or credentials, else the error of the registry or the
/// engine, with the matching gRPC code.
pub async fn pull(shim: &Arc<Shim>, request: PullImageRequest) -> Result<PullImageResponse, Error> {
    shim.require_sync()?;
    let name = named(request.image, "image.image")?;
    let image_ref = by_name(shim, &name, request.auth).await?;
    Ok(PullImageResponse { image_ref })
}

/// Pulls `name` and returns the image's id.
///
/// # Errors
/// As [`pull`].
pub async fn by_name(
    shim: &Arc<Shim>,
    name: &str,
    auth: Option<AuthConfig>,
) -> Result<String, Error> {
    let reference: Reference = name
        .parse()
        .map_err(|error| Error::invalid("image.image", format!("{error}")))?;
    let auth = auth.filter(|auth| *auth != AuthConfig::default());
    let key = (reference, auth.clone().map(auth_key));
    let credentials = auth.map(credentials).transpose()?;
    let pull = {
        let mut pulls = shim.pulls.0.lock();
        let start = || start(Arc::clone(shim), key.clone(), credentials);
        pulls.entry(key.clone()).or_insert_with(start).clone()
    };
    pull.await.map_err(|failure| {
        let (image, message) = (name.to_owned(), failure.message);
        match failure.cause {
            PullCause::Registry(Code::Unavailable) => Error::RegistryUnavailable { image, message },
            PullCause::Registry(code) | PullCause::Node(code) => Error::Pull {
                image,
                code,
                message,
            },
        }
    })
}

/// Runs the pull in its own task, so that it completes even if every client stops waiting.
fn start(shim: Arc<Shim>, key: PullKey, credentials: Option<Credentials>) -> Pull {
    let tasks = shim.tasks.clone();
    let task = tasks.spawn(async move {
        let result = run(&shim, &key.0, credentials).await;
        shim.pulls.0.lock().remove(&key);
        result
    });
    async move {
        task.await.unwrap_or_else(|_| {
            Err(PullFailure {
                cause: PullCause::Node(Code::Internal),
                message: "internal error in the shim; see its log".into(),
            })
        })
    }
    .boxed()
    .shared()
}

async fn run(
    shim: &Shim,
    reference: &Reference,
    credentials: Option<Credentials>,
) -> Result<String, PullFailure> {
    tracing::info!(image = %reference, "pulling image");
    let progress = shim.config.image_pull_progress_deadline;
    let began = tokio::time::Instant::now();
    let (repository, target) = (reference.repository(), reference.tag_or_digest());
    shim.engine
        .pull_image(repository, target, credentials, progress)
        .await?;
    // The tag may have referred to another image before.
    let name = reference.to_string();
    let inspected = shim.images.inspect(&shim.engine, &name).await;
    let known = inspected.map_err(|error| match error {
        Error::NotFound { .. } => PullFailure {
            cause: PullCause::Node(Code::NotFound),
            message: "the image was removed right after it was pulled".into(),
        },
        other => PullFailure {
            cause: PullCause::Node(other.code()),
            message: other.to_string(),
        },
    })?;
    let id = known.image.id.clone();
    tracing::info!(image = %reference, id, took = ?began.elapsed(), "pulled the image");
    Ok(id)
}

impl From<EngineError> for PullFailure {
    fn from(error: EngineError) -> Self {
        let message = error.cause.to_string();
        let cause = match &error.cause {
            Cause::Refused { .. } | Cause::NotFound(_) | Cause::Conflict(_) => {
                PullCause::Registry(code_of(&message))
            }
            _ => PullCause::Node(Error::from(error).code()),
        };
        Self { cause, message }
    }
}

/// The engine returns the registry's errors as text; these phrases occur with all engine versions
/// and image stores.
fn code_of(message: &str) -> Code {
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&["toomanyrequests", "too many requests"]) {
        Code::ResourceExhausted
    } else if says(&[
        "unauthorized",
        "authentication required",
        "no basic auth",
        "incorrect username",
    ]) {
        Code::Unauthenticated
    } else if says(&["denied", "forbidden"]) {
        Code::PermissionDenied
    } else if says(&[
        "manifest unknown",
        "not found",
        "no matching manifest",
        "does not exist",
        "name unknown",
    ]) {
        Code::NotFound
    } else if says(&[
        "connection refused",
        "no such host",
        "timeout",
        "network is unreachable",
        "no route to host",
        "i/o timeout",
        "server misbehaving",
        "connection reset",
        "service unavailable",
        "bad gateway",
        "eof",
    ]) {
        Code::Unavailable
    } else {
        Code::Unknown
    }
}

fn auth_key(auth: AuthConfig) -> [String; 6] {
    [
        auth.username,
        auth.password,
        auth.auth,
        auth.server_address,
        auth.identity_token,
        auth.registry_token,
    ]
}

/// Converts CRI's credentials to the engine's format. The engine ignores `auth`, which is the
/// base64 of `username:password`, so it is decoded here.
fn credentials(auth: AuthConfig) -> Result<Credentials, Error> {
    let (mut username, mut password) = (auth.username, auth.password);
    if username.is_empty() && !auth.auth.is_empty() {
        // The error must not contain the value, which is a secret.
        let bad = || Error::invalid("auth.auth", "must be <username>:<password> in base64");
        let plain = STANDARD.decode(auth.auth.trim()).map_err(|_| bad())?;
        let plain = String::from_utf8(plain).map_err(|_| bad())?;
        let (user, pass) = plain.split_once(':').ok_or_else(bad)?;
        username = user.to_owned();
        password = pass.trim_end_matches('\0').to_owned();
    }
    let given = |text: String| (!text.is_empty()).then_some(text);
    Ok(Credentials {
        username: given(username),
        password: given(password),
        serveraddress: given(auth.server_address),
        identitytoken: given(auth.identity_token),
        registrytoken: given(auth.registry_token),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registrys_words_become_codes() {
        let cases = [
            (
                "manifest for 127.0.0.1:5000/a:b not found: manifest unknown: manifest unknown",
                Code::NotFound,
            ),
            (
                "Head \"http://127.0.0.1:5000/v2/a/manifests/b\": no basic auth credentials",
                Code::Unauthenticated,
            ),
            (
                "unauthorized: authentication required",
                Code::Unauthenticated,
            ),
            (
                "pull access denied for x, repository does not exist or may require 'docker login'",
                Code::PermissionDenied,
            ),
            (
                "Get \"http://127.0.0.1:9/v2/\": dial tcp 127.0.0.1:9: connect: connection refused",
                Code::Unavailable,
            ),
            (
                "toomanyrequests: You have reached your pull rate limit",
                Code::ResourceExhausted,
            ),
            ("no space left on device", Code::Unknown),
        ];
        for (message, code) in cases {
            assert_eq!(code_of(message), code, "{message}");
        }
    }

    #[test]
    fn auth_in_base64_is_taken_apart() {
        let auth = AuthConfig {
            auth: STANDARD.encode("me:se:cret"),
            ..Default::default()
        };
        let found = credentials(auth).unwrap();
        assert_eq!(found.username.as_deref(), Some("me"));
        assert_eq!(found.password.as_deref(), Some("se:cret"));
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_not_shown() {
        let auth = AuthConfig {
            auth: "!!hunter2!!".into(),
            ..Default::default()
        };
        let error = credentials(auth).unwrap_err().to_string();
        assert!(
            error.contains("auth.auth") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
