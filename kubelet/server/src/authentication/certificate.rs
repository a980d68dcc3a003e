//! Authentication by client certificate: the common name is the user, each organization a group.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    der_parser::{Oid, oid},
    prelude::FromDer,
    x509::X509Name,
};

use super::{AuthenticationError, User};
use crate::tls::client_authority::ClientAuthority;

/// Extra key under which the API server receives the fingerprint of the certificate.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The attribute of a subject with the user's UID.
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

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
    let uid = uid(subject)?;
    let fingerprint: String = Sha256::digest(own)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Some(User {
        name,
        uid,
        groups: subject.iter_organization().map(text).collect(),
        extra: BTreeMap::from([(
            CREDENTIAL_ID.to_owned(),
            vec![format!("X509SHA256={fingerprint}")],
        )]),
    }))
}

/// The UID in a subject; empty if there is none.
fn uid(subject: &X509Name<'_>) -> Result<String, AuthenticationError> {
    let unreadable = |why: &str| AuthenticationError::Unreadable(format!("UID: {why}"));
    let mut uids = subject.iter_by_oid(&UID);
    let Some(uid) = uids.next() else {
        return Ok(String::new());
    };
    if uids.next().is_some() {
        return Err(unreadable("there is more than one"));
    }
    match uid.as_str() {
        Ok("") => Err(unreadable("it is empty")),
        Ok(uid) => Ok(uid.to_owned()),
        Err(_) => Err(unreadable("it is not a string")),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn uid_of(uids: &[&str]) -> Result<String, String> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let names = &mut params.distinguished_name;
        names.push(DnType::CommonName, "user");
        for value in uids {
            let own = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
            names.push(own, *value);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (_, certificate) = X509Certificate::from_der(certificate.der()).unwrap();
        uid(certificate.subject()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_certificate_may_tell_the_uid_of_its_user() {
        assert_eq!(uid_of(&[]), Ok(String::new()));
        assert_eq!(uid_of(&["u-1"]), Ok("u-1".to_owned()));
        let error = uid_of(&[""]).unwrap_err();
        assert!(error.contains("UID: it is empty"), "{error}");
    }
}
