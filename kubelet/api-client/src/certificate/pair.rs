//! A certificate with its private key and its parsed fields.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_rustls::rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::{pem, request::Template};
use crate::identity::{IdentityError, certified_key};

/// Why a certificate and a key are unusable.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// TLS cannot use the certificate or the key, or they do not match.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate cannot be parsed.
    #[error("certificate: {0}")]
    Certificate(String),
}

/// A certificate chain and its private key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The chain and key for TLS.
    pub key: Arc<CertifiedKey>,
    /// Fields of the first certificate.
    pub facts: Facts,
    /// The certificates and then the key, in PEM.
    pem: Arc<str>,
}

/// Fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Common name of its subject (CN).
    pub common_name: String,
    /// Organizations of its subject (O).
    pub organizations: Vec<String>,
    /// DNS names among its subject alternative names.
    pub dns_names: Vec<String>,
    /// IP addresses among its subject alternative names.
    pub addresses: Vec<IpAddr>,
}

/// Receives the current certificate of this node; `None` until the first one is issued.
pub type PairReceiver = watch::Receiver<Option<Arc<Pair>>>;

impl Pair {
    /// Parses both from PEM. Either input may contain other sections.
    ///
    /// # Errors
    /// The part that is missing or invalid.
    pub fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let certified = certified_key(certificate, key)?;
        let facts = Facts::of(&certified)?;
        let mut text = String::new();
        for certificate in &certified.cert {
            text += &pem::encode("CERTIFICATE", certificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(IdentityError::Key)?;
        text += &match &key {
            PrivateKeyDer::Pkcs1(der) => pem::encode("RSA PRIVATE KEY", der.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(der) => pem::encode("EC PRIVATE KEY", der.secret_sec1_der()),
            other => pem::encode("PRIVATE KEY", other.secret_der()),
        };
        Ok(Self {
            key: Arc::new(certified),
            facts,
            pem: text.into(),
        })
    }

    /// The certificates and the key in PEM. Secret.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Whether the certificate has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.facts.not_after
    }
}

impl Facts {
    /// Parses the first certificate of a chain.
    pub(super) fn of(key: &CertifiedKey) -> Result<Self, PairError> {
        let der: &CertificateDer<'_> = key
            .cert
            .first()
            .ok_or_else(|| PairError::Certificate("no certificate found".to_owned()))?;
        let fault = |error: &dyn std::fmt::Display| PairError::Certificate(error.to_string());
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| fault(&error))?;
        let time = |seconds| Timestamp::from_second(seconds).map_err(|error| fault(&error));
        let validity = certificate.validity();
        let subject = certificate.subject();
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            value.as_str().unwrap_or_default().to_owned()
        };
        let mut facts = Self {
            not_before: time(validity.not_before.timestamp())?,
            not_after: time(validity.not_after.timestamp())?,
            common_name: subject
                .iter_common_name()
                .map(text)
                .next()
                .unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
        };
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| fault(&error))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => facts.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => facts.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Whether the certificate has everything that the template asks for.
    pub fn satisfies(&self, template: &Template) -> bool {
        let has_names = |name| self.dns_names.contains(name);
        let has_addresses = |address| self.addresses.contains(address);
        self.common_name == template.common_name
            && self
                .organizations
                .iter()
                .any(|name| name == super::request::ORGANIZATION)
            && template.dns_names.iter().all(has_names)
            && template.addresses.iter().all(has_addresses)
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}
