//! Authentication by client certificate: the common name is the user, each organization a group.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{AuthenticationError, User};
use crate::tls::client_authority::ClientAuthority;

/// Extra key under which the API server receives the fingerprint of the certificate.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The user of a certificate chain; `None` for an empty chain or a certificate without a name.
pub(super) fn user(
    authority: &ClientAuthority,
    chain: &[CertificateDer<'_>],
) -> Result<Option<User>, AuthenticationError> {
    let Some(own) = chain.first() else {
        return Ok(None);
    };
    authority
        .verify(chain)
        .map_err(AuthenticationError::Certificate)?;
    let (_, certificate) = X509Certificate::from_der(own)
        .map_err(|error| AuthenticationError::Unreadable(error.to_string()))?;
    let subject = certificate.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().unwrap_or_default().to_owned()
    };
    let Some(name) = subject.iter_common_name().last().map(text) else {
        return Ok(None);
    };
    if name.is_empty() {
        return Ok(None);
    }
    let fingerprint: String = Sha256::digest(own)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Some(User {
        name,
        uid: String::new(),
        groups: subject.iter_organization().map(text).collect(),
        extra: BTreeMap::from([(
            CREDENTIAL_ID.to_owned(),
            vec![format!("X509SHA256={fingerprint}")],
        )]),
    }))
}
