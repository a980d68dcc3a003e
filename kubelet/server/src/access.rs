//! Access control: authentication and authorization of each request.

use std::{net::IpAddr, sync::Arc};

use axum::{
    http::{StatusCode, request::Parts},
    response::Response,
};
use cri_streaming::bound::Bound;
use tracing::{debug, warn};

use super::{
    authentication::Authenticator,
    authorization::{Authorizer, Webhook, subresources, verb},
    options::{AccessOptions, AuthorizationMode},
    response::text,
    reviews::Reviews,
    tls::{PeerCertificates, client_authority::ClientAuthority},
};

/// Admits requests, or returns the reason for the refusal.
#[derive(Debug)]
pub(super) struct AccessControl {
    authenticator: Authenticator,
    authorizer: Authorizer,
}

/// The configuration needs an API server, and there is none.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Bearer tokens cannot be reviewed.
    #[error(
        "no client provided, cannot use webhook authentication: without an API server authentication.webhook.enabled (--authentication-token-webhook) must be false"
    )]
    Authentication,
    /// Access cannot be reviewed.
    #[error(
        "no client provided, cannot use webhook authorization: without an API server \
         authorization.mode (--authorization-mode) must be AlwaysAllow; with a configuration \
         file it defaults to Webhook"
    )]
    Authorization,
}

impl AccessControl {
    pub(super) fn new(
        options: &AccessOptions,
        node_name: &str,
        authority: Option<Arc<ClientAuthority>>,
        reviews: Option<Arc<dyn Reviews>>,
    ) -> Result<Self, AccessError> {
        if options.authentication.webhook && reviews.is_none() {
            return Err(AccessError::Authentication);
        }
        let authorizer = match (&options.authorization, &reviews) {
            (AuthorizationMode::AlwaysAllow, _) => Authorizer::AlwaysAllow,
            (AuthorizationMode::Webhook { .. }, None) => return Err(AccessError::Authorization),
            (
                AuthorizationMode::Webhook {
                    authorized_ttl,
                    unauthorized_ttl,
                },
                Some(reviews),
            ) => Authorizer::Webhook(Webhook::new(
                Arc::clone(reviews),
                node_name,
                [*authorized_ttl, *unauthorized_ttl],
            )),
        };
        if !options.authentication.is_possible() {
            warn!(
                "no authentication method is configured, so the secure port rejects all requests; \
                 set authentication.x509.clientCAFile (--client-ca-file)"
            );
        }
        Ok(Self {
            authenticator: Authenticator::new(&options.authentication, authority, reviews),
            authorizer,
        })
    }

    /// The bounds on reviews by the API server.
    pub(super) fn bounds(&self) -> Vec<Arc<Bound>> {
        let mut bounds = self.authenticator.bounds();
        bounds.extend(self.authorizer.bounds());
        bounds
    }

    /// Checks whether a request from `address` is authenticated and authorized.
    ///
    /// # Errors
    /// The response for the refused caller.
    pub(super) async fn check(
        &self,
        request: &Parts,
        peer: &PeerCertificates,
        address: Option<IpAddr>,
    ) -> Result<(), Box<Response>> {
        let unauthorized = || Box::new(text(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()));
        let user = match self
            .authenticator
            .authenticate(peer, &request.headers, address)
            .await
        {
            Ok(Some(user)) => user,
            Ok(None) => return Err(unauthorized()),
            Err(error) => {
                debug!(%error, "Unable to authenticate the request due to an error");
                return Err(unauthorized());
            }
        };
        let verb = verb(&request.method);
        let subresources = subresources(request.uri.path());
        for subresource in subresources {
            let allowed = self
                .authorizer
                .allows(&user, verb, subresource, address)
                .await;
            match allowed {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    // The authorizer logs an outage once, instead of for each request.
                    debug!(user = user.name, verb, subresource, %error, "Authorization error");
                    let name = &user.name;
                    let reason = format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    );
                    return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, reason)));
                }
            }
        }
        debug!(user = user.name, verb, ?subresources, "Forbidden");
        let reason = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(Box::new(text(StatusCode::FORBIDDEN, reason)))
    }
}
