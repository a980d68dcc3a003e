//! Authentication of callers: by client certificate, by bearer token, or as anonymous.

mod certificate;
mod token;
pub(super) mod websocket_protocol;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, header};
use cri_streaming::bound::Bound;
use token::TokenAuthentication;

use super::{
    reviews::{ReviewError, Reviews},
    tls::{PeerCertificates, client_authority::ClientAuthority},
};
use crate::options::AuthenticationOptions;

/// Group of every authenticated user.
const AUTHENTICATED: &str = "system:authenticated";

/// A caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its UID; empty when unknown.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Extra information about it.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why authentication failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuthenticationError {
    #[error("the client certificate is not trusted: {0}")]
    Certificate(tokio_rustls::rustls::Error),
    #[error("cannot parse the client certificate: {0}")]
    Unreadable(String),
    #[error("invalid bearer token")]
    Token,
    #[error("multiple base64.bearer.authorization tokens specified")]
    Tokens,
    #[error("invalid base64url.bearer.authorization.k8s.io token encoding")]
    Encoding,
    #[error("missing additional subprotocol")]
    NoOtherProtocol,
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error("the bearer token was rejected: {0}")]
    Refused(String),
}

/// Authenticates callers.
#[derive(Debug)]
pub(super) struct Authenticator {
    authority: Option<Arc<ClientAuthority>>,
    tokens: Option<TokenAuthentication>,
    anonymous: bool,
}

impl Authenticator {
    pub(super) fn new(
        options: &AuthenticationOptions,
        authority: Option<Arc<ClientAuthority>>,
        reviews: Option<Arc<dyn Reviews>>,
    ) -> Self {
        let tokens = reviews
            .filter(|_| options.webhook)
            .map(|reviews| TokenAuthentication::new(reviews, options.cache_ttl));
        Self {
            authority,
            tokens,
            anonymous: options.anonymous,
        }
    }

    /// The bounds on token reviews by the API server.
    pub(super) fn bounds(&self) -> Vec<Arc<Bound>> {
        let tokens = self.tokens.iter();
        tokens.flat_map(TokenAuthentication::bounds).collect()
    }

    /// The user of a request from `address`; `None` for a request without credentials while
    /// anonymous access is off.
    ///
    /// # Errors
    /// The credentials are invalid. Such a request is not treated as anonymous.
    pub(super) async fn authenticate(
        &self,
        peer: &PeerCertificates,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<Option<User>, AuthenticationError> {
        let mut fault = None;
        if let Some(authority) = &self.authority {
            match certificate::user(authority, &peer.0) {
                Ok(Some(user)) => return Ok(Some(authenticated(user))),
                Ok(None) => {}
                Err(error) => fault = Some(error),
            }
        }
        if let (Some(tokens), Some(token)) = (&self.tokens, bearer_token(headers)) {
            match tokens.user(token, address).await {
                Ok(user) => return Ok(Some(authenticated(user))),
                Err(error) => fault = Some(error),
            }
        }
        if let Some(tokens) = &self.tokens {
            let user = match websocket_protocol::token(headers) {
                Ok(Some(token)) => tokens.user(&token, address).await.map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match user {
                Ok(Some(user)) => return Ok(Some(authenticated(user))),
                Ok(None) => {}
                Err(error) => fault = Some(error),
            }
        }
        match fault {
            Some(error) => Err(error),
            None => Ok(self.anonymous.then(|| User {
                name: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..User::default()
            })),
        }
    }
}

fn authenticated(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// The bearer token in the first `Authorization` header.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_from_its_header() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc def", Some("abc")),
            ("Bearer ", None),
            ("Basic abc", None),
            ("Bearer", None),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(bearer_token(&headers), token, "{value}");
        }
    }
}
