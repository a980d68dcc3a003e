//! CertificateSigningRequests: made, sent, and waited for.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use sha2::{Digest as _, Sha512_256};
use tokio::time;
use tracing::info;

use super::pem;
use crate::{
    list_watch::{Change, ListWatch},
    request::{ApiError, ask},
};

/// Every node's organization.
pub const ORGANIZATION: &str = "system:nodes";

/// What a certificate is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Whose it is.
    pub common_name: String,
    /// Names of hosts that it is to be good for.
    pub dns_names: Vec<String>,
    /// Addresses of hosts that it is to be good for.
    pub addresses: Vec<IpAddr>,
}

impl Template {
    /// That of a node's own user.
    pub fn of_node(node_name: &str) -> Self {
        Self {
            common_name: format!("system:node:{node_name}"),
            dns_names: Vec::new(),
            addresses: Vec::new(),
        }
    }
}

/// Who signs certificates, and what for.
#[derive(Clone, Copy, Debug)]
pub struct Signer {
    /// Its name at the API server.
    pub name: &'static str,
    /// What the certificates are for.
    pub usages: &'static [&'static str],
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A key or a request cannot be made.
    #[error("cannot make a certificate signing request: {0}")]
    Make(#[from] rcgen::Error),
    /// The API server does not take the request.
    #[error("cannot create a certificate signing request: {0}")]
    Create(#[source] ApiError),
    /// A request of that name is there and is not ours.
    #[error("the certificate signing request {0} is of another key or another node")]
    Foreign(String),
    /// Somebody refused it.
    #[error("certificate signing request {name} {verdict}: {reason}: {message}")]
    Refused {
        /// The request.
        name: String,
        /// `is denied` or `failed`.
        verdict: &'static str,
        /// Why, in a word.
        reason: String,
        /// Why, in more words.
        message: String,
    },
    /// It went away.
    #[error("certificate signing request {0} was deleted")]
    Deleted(String),
    /// Nobody decided.
    #[error("certificate signing request {0} was not signed in time")]
    Late(String),
}

impl RequestError {
    /// Whether the API server could not be asked, which the log has already.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Create(error) if error.is_unreachable())
    }
}

/// A new private key, as upstream's: ECDSA P-256.
///
/// # Errors
/// There is no chance to be had.
pub fn new_key() -> Result<KeyPair, RequestError> {
    Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// A request of a certificate for `key`.
#[derive(Debug)]
pub struct SigningRequest<'a> {
    /// What it is to say.
    pub template: &'a Template,
    /// Who is to sign it.
    pub signer: Signer,
    /// Its key.
    pub key: &'a KeyPair,
    /// Name of the request; the API server makes one up when unset. One that follows
    /// from the key is found again after a restart.
    pub name: Option<String>,
}

impl SigningRequest<'_> {
    /// The name of a node's first request, which follows from all that it says.
    pub fn digest_name(&self) -> String {
        use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
        let mut hash = Sha512_256::new();
        let parts = [
            self.key.public_key_raw(),
            self.template.common_name.as_bytes(),
            ORGANIZATION.as_bytes(),
        ];
        let usages = self.signer.usages.iter().map(|usage| usage.as_bytes());
        for part in parts.into_iter().chain(usages) {
            hash.update(BASE64.encode(part));
            hash.update(b"|");
        }
        format!("node-csr-{}", BASE64.encode(hash.finalize()))
    }

    fn der(&self) -> Result<Vec<u8>, RequestError> {
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, ORGANIZATION);
        name.push(DnType::CommonName, self.template.common_name.as_str());
        params.distinguished_name = name;
        for name in &self.template.dns_names {
            let name = name.as_str().try_into()?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let addresses = self.template.addresses.iter().copied();
        params
            .subject_alt_names
            .extend(addresses.map(SanType::IpAddress));
        Ok(params.serialize_request(self.key)?.der().to_vec())
    }

    /// Sends the request and waits for the certificate, in PEM, up to `limit`.
    ///
    /// # Errors
    /// The API server does not take it, or nobody signs it.
    pub async fn certificate(
        &self,
        client: Client,
        limit: Duration,
    ) -> Result<Vec<u8>, RequestError> {
        let requests: Api<CertificateSigningRequest> = Api::all(client);
        let created = self.create(&requests).await?;
        let name = created.name.clone().unwrap_or_default();
        time::timeout(limit, wait(requests, &name, created))
            .await
            .unwrap_or(Err(RequestError::Late(name)))
    }

    async fn create(
        &self,
        requests: &Api<CertificateSigningRequest>,
    ) -> Result<ObjectMeta, RequestError> {
        let text = pem::encode("CERTIFICATE REQUEST", &self.der()?);
        let usages = self.signer.usages.iter().map(|usage| (*usage).to_owned());
        let request = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: self.name.clone(),
                generate_name: self.name.is_none().then(|| "csr-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(text.into_bytes()),
                signer_name: self.signer.name.to_owned(),
                usages: Some(usages.collect()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let params = PostParams::default();
        let created = match (ask(requests.create(&params, &request)).await, &self.name) {
            (Ok(created), _) => created,
            (Err(error), Some(name)) if error.is_already_exists() => {
                let found = ask(requests.get(name)).await;
                let found = found.map_err(RequestError::Create)?;
                if !self.is_ours(&found) {
                    return Err(RequestError::Foreign(name.clone()));
                }
                found
            }
            (Err(error), _) => return Err(RequestError::Create(error)),
        };
        info!(
            csr = created.metadata.name,
            signer = self.signer.name,
            "Certificate requested"
        );
        Ok(created.metadata)
    }

    /// Whether a request that is there already asks for the same.
    fn is_ours(&self, found: &CertificateSigningRequest) -> bool {
        use tokio_rustls::rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
        use x509_parser::prelude::{FromDer as _, X509CertificationRequest};
        let Ok(der) = CertificateSigningRequestDer::from_pem_slice(&found.spec.request.0) else {
            return false;
        };
        let Ok((_, request)) = X509CertificationRequest::from_der(&der) else {
            return false;
        };
        let info = &request.certification_request_info;
        let names: Vec<_> = info.subject.iter_common_name().collect();
        found.spec.signer_name == self.signer.name
            && info.subject_pki.subject_public_key.data == self.key.public_key_raw()
            && matches!(names.as_slice(), [name]
                if name.as_str().ok() == Some(&self.template.common_name))
    }
}

/// The certificate of a request, once it is signed.
async fn wait(
    requests: Api<CertificateSigningRequest>,
    name: &str,
    created: ObjectMeta,
) -> Result<Vec<u8>, RequestError> {
    // A list from before it was made would take it for deleted.
    let mut changes =
        ListWatch::new(requests, format!("metadata.name={name}")).since(created.resource_version);
    let uid = created.uid.as_deref();
    loop {
        let request = match changes.next().await {
            Change::All(requests) => requests.into_iter().next(),
            Change::Put(request) => Some(request),
            Change::Gone(_) => None,
        };
        let Some(request) = request else {
            return Err(RequestError::Deleted(name.to_owned()));
        };
        if let Some(certificate) = decision(&request, uid)? {
            return Ok(certificate);
        }
    }
}

/// The certificate, if there is one; `None` while nobody has decided.
fn decision(
    request: &CertificateSigningRequest,
    uid: Option<&str>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let name = request.metadata.name.clone().unwrap_or_default();
    if request.metadata.uid.as_deref() != uid {
        return Err(RequestError::Deleted(name));
    }
    let Some(status) = &request.status else {
        return Ok(None);
    };
    let mut is_approved = false;
    for condition in status.conditions.iter().flatten() {
        let verdict = match condition.type_.as_str() {
            "Denied" => "is denied",
            "Failed" => "failed",
            "Approved" => {
                is_approved = true;
                continue;
            }
            _ => continue,
        };
        return Err(RequestError::Refused {
            name,
            verdict,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        });
    }
    let certificate = status.certificate.as_ref().map(|bytes| bytes.0.clone());
    Ok(certificate.filter(|bytes| is_approved && !bytes.is_empty()))
}

/// When to renew a certificate: when between 70 % and 90 % of its time are over, as
/// `share`, between 0 and 1, says.
pub fn renewal(not_before: Timestamp, not_after: Timestamp, share: f64) -> Timestamp {
    let total = not_after.as_second() - not_before.as_second();
    let after = (total as f64 * (0.7 + 0.2 * share)) as i64;
    Timestamp::from_second(not_before.as_second() + after).unwrap_or(not_after)
}
