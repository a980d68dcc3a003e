//! A certificate with its private key, and what it says.

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

/// Why there is no such pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The certificate and the key are not, or not together, for TLS.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate cannot be understood.
    #[error("certificate: {0}")]
    Certificate(String),
}

/// A certificate, those that vouch for it, and its private key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What TLS takes.
    pub key: Arc<CertifiedKey>,
    /// What its first certificate says.
    pub facts: Facts,
    /// All of it in PEM: the certificates, then the key.
    pem: Arc<str>,
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// It begins to hold.
    pub not_before: Timestamp,
    /// It ends to hold.
    pub not_after: Timestamp,
    /// Whose it is (CN).
    pub common_name: String,
    /// Whom they belong to (O).
    pub organizations: Vec<String>,
    /// Names of hosts that it is good for.
    pub dns_names: Vec<String>,
    /// Addresses of hosts that it is good for.
    pub addresses: Vec<IpAddr>,
}

/// Receives the current certificate of this node; `None` until the first one is signed.
pub type PairReceiver = watch::Receiver<Option<Arc<Pair>>>;

impl Pair {
    /// Reads both from PEM, of which each may have more than it needs.
    ///
    /// # Errors
    /// What is missing or wrong.
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

    /// The certificates and the key, as the file of both has them. A secret.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Whether the certificate does not hold any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.facts.not_after
    }
}

impl Facts {
    /// What the first of a key's certificates says.
    pub(super) fn of(key: &CertifiedKey) -> Result<Self, PairError> {
        let der: &CertificateDer<'_> = key
            .cert
            .first()
            .ok_or_else(|| PairError::Certificate("there is none".to_owned()))?;
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

    /// Whether the certificate says all that is asked for.
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
