//! The credentials of requests to the API server, other than the client certificate: headers with a
//! token or a password, and the user to act as.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::header::{
    AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue, USER_AGENT,
};
use kubelet_host::{repeatable::blocking, version};
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;

use self::exec_plugin::ExecPlugin;
use super::{
    identity::ClientIdentity,
    kubeconfig::{ClusterAccess, User},
};

mod exec_plugin;

/// The period at which a token file is read again, as upstream.
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(60);

/// Why there are no credentials for a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    /// The token file cannot be read, and there is no last token.
    #[error("cannot read the token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The exec plugin returned none.
    #[error("exec plugin {command}: {reason}")]
    Exec {
        /// The program.
        command: String,
        /// The cause.
        reason: String,
    },
}

/// The credentials of a user.
#[derive(Debug)]
pub(super) struct Credentials {
    /// The headers of all requests.
    fixed: HeaderMap,
    source: Source,
}

/// The source of the `Authorization` header.
#[derive(Debug)]
enum Source {
    /// It is a fixed header, or there is none.
    Fixed,
    File(TokenFile),
    Exec(Arc<ExecPlugin>),
}

impl Credentials {
    /// The credentials of a kubeconfig. The client certificate of an exec plugin goes to
    /// `identity`.
    ///
    /// # Errors
    /// The field of the user that is unusable.
    pub(super) fn new(
        access: &ClusterAccess,
        identity: &Arc<ClientIdentity>,
    ) -> Result<Self, (&'static str, String)> {
        let user = &access.user;
        let mut fixed = impersonation(user)?;
        if let Ok(agent) = HeaderValue::from_str(&user_agent()) {
            fixed.insert(USER_AGENT, agent);
        }
        let has_token = !user.token.0.is_empty() || !user.token_file.is_empty();
        if !user.username.is_empty() {
            if has_token {
                return Err(("username", "must not be set together with a token".into()));
            }
            let pair = format!("{}:{}", user.username, user.password.0);
            let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
            fixed.insert(AUTHORIZATION, secret(&text).map_err(invalid("username"))?);
        }
        let token = (!user.token.0.is_empty()).then(|| bearer(&user.token.0));
        let token = token.transpose().map_err(invalid("token"))?;
        // A token takes precedence over a plugin's, as upstream.
        let source = if !user.token_file.is_empty() {
            Source::File(TokenFile::new(user.token_file.clone().into(), token))
        } else if let Some(token) = token {
            fixed.insert(AUTHORIZATION, token);
            Source::Fixed
        } else if let Some(exec) = &user.exec {
            let plugin = ExecPlugin::new(exec, &access.cluster, Arc::clone(identity))?;
            Source::Exec(Arc::new(plugin))
        } else {
            Source::Fixed
        };
        Ok(Self { fixed, source })
    }

    /// Adds the headers to a request. Returns the token of a plugin.
    ///
    /// # Errors
    /// There are no credentials.
    pub(super) async fn add_to(
        &self,
        headers: &mut HeaderMap,
    ) -> Result<Option<HeaderValue>, CredentialsError> {
        for (name, value) in &self.fixed {
            headers.append(name, value.clone());
        }
        match &self.source {
            Source::Fixed => Ok(None),
            Source::File(file) => {
                headers.insert(AUTHORIZATION, file.header().await?);
                Ok(None)
            }
            Source::Exec(plugin) => {
                let token = plugin.header().await?;
                if let Some(token) = &token {
                    headers.insert(AUTHORIZATION, token.clone());
                }
                Ok(token)
            }
        }
    }

    /// The API server did not accept these credentials: a plugin may have newer ones.
    pub(super) async fn refused(&self, token: Option<&HeaderValue>) {
        if let Source::Exec(plugin) = &self.source {
            plugin.forget(token).await;
        }
    }
}

/// The headers that name the user to act as.
fn impersonation(user: &User) -> Result<HeaderMap, (&'static str, String)> {
    let mut headers = HeaderMap::new();
    let has_more = !user.impersonate_uid.is_empty()
        || !user.impersonate_groups.is_empty()
        || !user.impersonate_extra.is_empty();
    if user.impersonate.is_empty() {
        let message = "is required together with as-uid, as-groups or as-user-extra";
        return match has_more {
            true => Err(("as", message.to_owned())),
            false => Ok(headers),
        };
    }
    let mut add = |field, name: HeaderName, value: &str| {
        let value = HeaderValue::from_str(value).map_err(invalid(field))?;
        headers.append(name, value);
        Ok(())
    };
    let name = HeaderName::from_static;
    add("as", name("impersonate-user"), &user.impersonate)?;
    if !user.impersonate_uid.is_empty() {
        add("as-uid", name("impersonate-uid"), &user.impersonate_uid)?;
    }
    for group in &user.impersonate_groups {
        add("as-groups", name("impersonate-group"), group)?;
    }
    for (key, values) in &user.impersonate_extra {
        let name = format!("impersonate-extra-{}", escaped(key));
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|error| ("as-user-extra", error.to_string()))?;
        for value in values {
            add("as-user-extra", name.clone(), value)?;
        }
    }
    Ok(headers)
}

/// A key as part of a header's name: other bytes than those of a header's name are escaped.
fn escaped(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => text.push(byte.into()),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`'
            | b'|' | b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn invalid(field: &'static str) -> impl Fn(InvalidHeaderValue) -> (&'static str, String) {
    move |_| {
        (
            field,
            "has characters that an HTTP header cannot have".to_owned(),
        )
    }
}

fn bearer(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    secret(&format!("Bearer {token}"))
}

fn secret(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The `User-Agent` header.
fn user_agent() -> String {
    let arch = version::go_arch();
    format!("kubelet/{} (linux/{arch})", version::VERSION)
}

/// A file with a token that is replaced from time to time.
#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    /// The last token, and when the file is read again.
    last: Mutex<(Option<HeaderValue>, Instant)>,
}

impl TokenFile {
    /// The token of a file; `first` while the file cannot be read.
    fn new(path: PathBuf, first: Option<HeaderValue>) -> Self {
        let last = Mutex::new((first, Instant::now()));
        Self { path, last }
    }

    async fn header(&self) -> Result<HeaderValue, CredentialsError> {
        let mut last = self.last.lock().await;
        let (token, next) = &mut *last;
        if let Some(token) = token
            && Instant::now() < *next
        {
            return Ok(token.clone());
        }
        let path = self.path.clone();
        let read = blocking(move || read_token(&path)).await;
        *next = Instant::now() + TOKEN_FILE_PERIOD;
        match (read.map_err(io::Error::other).flatten(), &token) {
            (Ok(read), _) => Ok(token.insert(read).clone()),
            (Err(error), Some(token)) => {
                let path = self.path.display();
                warn!(%path, %error, "cannot read the token file; using the last token");
                Ok(token.clone())
            }
            (Err(source), None) => Err(CredentialsError::TokenFile {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

fn read_token(path: &Path) -> io::Result<HeaderValue> {
    let text = fs::read_to_string(path)?;
    match text.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
        token => bearer(token).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

#[cfg(test)]
mod tests;
