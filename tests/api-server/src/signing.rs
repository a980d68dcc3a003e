//! The cluster's certificate authority. It issues the certificates of the server and its clients,
//! and signs certificate signing requests.

use std::{net::IpAddr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::{Value, json};

use super::{
    clock::Clock,
    errors::ApiError,
    request::Caller,
    storage::{Key, Storage},
    strategy::text,
};

/// How far certificates are backdated, to tolerate clock skew.
const BACKDATED: Duration = Duration::from_secs(300);
/// The default lifetime of a certificate.
const LASTS: Duration = Duration::from_secs(365 * 24 * 3600);
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// A certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// The certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Creates a certificate authority.
    pub fn new(clock: &Clock) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        set_time(&mut params, clock, 10 * LASTS);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// The authority's certificate, in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The authority's private key, in PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a client certificate. The subject holds only the last group of the caller, besides
    /// `system:authenticated`.
    pub fn client(
        &self,
        clock: &Clock,
        caller: &Caller,
        lasts: Duration,
    ) -> Result<Identity, ApiError> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, caller.user.as_str());
        for group in &caller.groups {
            if group != "system:authenticated" {
                params
                    .distinguished_name
                    .push(DnType::OrganizationName, group.as_str());
            }
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(clock, params, lasts).map_err(ApiError::internal)
    }

    /// Issues a serving certificate for these addresses and names.
    pub fn server(
        &self,
        clock: &Clock,
        addresses: &[IpAddr],
        names: &[&str],
    ) -> Result<Identity, rcgen::Error> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        let addresses = addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(clock, params, LASTS)
    }

    fn sign(
        &self,
        clock: &Clock,
        mut params: CertificateParams,
        lasts: Duration,
    ) -> Result<Identity, rcgen::Error> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_time(&mut params, clock, lasts);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Signs a certificate signing request.
    fn sign_request(&self, spec: &Value, clock: &Clock) -> Result<String, String> {
        let request = STANDARD
            .decode(text(spec, "/request"))
            .map_err(|error| error.to_string())?;
        let request = String::from_utf8(request).map_err(|error| error.to_string())?;
        let mut request = CertificateSigningRequestParams::from_pem(&request)
            .map_err(|error| error.to_string())?;
        let signer = text(spec, "/signerName");
        check_subject(signer, &request.params)?;
        let seconds = spec["expirationSeconds"].as_u64();
        let lasts = seconds.map_or(LASTS, Duration::from_secs);
        let params = &mut request.params;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![if signer == KUBELET_SERVING {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        set_time(params, clock, lasts);
        let signed = request
            .signed_by(&self.issuer)
            .map_err(|error| error.to_string())?;
        Ok(signed.pem())
    }
}

/// The rules of the kubelet signers for the subject and the alternative names.
fn check_subject(signer: &str, params: &CertificateParams) -> Result<(), String> {
    let subject = |kind: DnType| match params.distinguished_name.get(&kind) {
        Some(rcgen::DnValue::PrintableString(text)) => text.as_str().to_owned(),
        Some(rcgen::DnValue::Utf8String(text)) => text.clone(),
        _ => String::new(),
    };
    if signer == CLIENT {
        return Ok(());
    }
    if subject(DnType::OrganizationName) != "system:nodes" {
        return Err("subject organization is not system:nodes".to_owned());
    }
    if !subject(DnType::CommonName).starts_with("system:node:") {
        return Err("subject common name does not begin with system:node:".to_owned());
    }
    let named = !params.subject_alt_names.is_empty();
    match signer {
        KUBELET_CLIENT if named => Err("DNS and IP SANs are not allowed".to_owned()),
        KUBELET_SERVING if !named => Err("DNS or IP subjectAltName is required".to_owned()),
        _ => Ok(()),
    }
}

fn set_time(params: &mut CertificateParams, clock: &Clock, lasts: Duration) {
    let seconds = u64::try_from(clock.now().as_second()).unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = now - BACKDATED;
    params.not_after = now + lasts;
}

/// Approves a request if `approve` is set, and signs it if it is approved.
pub(super) fn follow(
    storage: &mut Storage,
    key: &Key,
    authority: &Authority,
    clock: &Clock,
    approve: bool,
) {
    let Some(old) = storage.get(key) else {
        return;
    };
    let signer = text(&old, "/spec/signerName");
    if ![KUBELET_CLIENT, KUBELET_SERVING, CLIENT].contains(&signer) {
        return;
    }
    let mut request = Value::clone(&old);
    let has = |request: &Value, kind: &str| {
        let conditions = request["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|one| one["type"] == kind)
    };
    let undecided = !has(&request, "Approved") && !has(&request, "Denied");
    if approve && undecided && signer != CLIENT {
        request["status"]["conditions"] = json!([{
            "type": "Approved", "status": "True", "reason": "AutoApproved",
            "message": "Auto approving kubelet client certificate after SubjectAccessReview.",
            "lastUpdateTime": clock.text(), "lastTransitionTime": clock.text(),
        }]);
    }
    let waits = has(&request, "Approved")
        && !has(&request, "Failed")
        && text(&request, "/status/certificate").is_empty();
    if waits {
        match authority.sign_request(&request["spec"], clock) {
            Ok(pem) => request["status"]["certificate"] = json!(STANDARD.encode(pem)),
            Err(why) => {
                if let Value::Array(conditions) = &mut request["status"]["conditions"] {
                    conditions.push(json!({
                        "type": "Failed", "status": "True", "reason": "SignerValidationFailure",
                        "message": why, "lastUpdateTime": clock.text(),
                        "lastTransitionTime": clock.text(),
                    }));
                }
            }
        }
    }
    if request != *old {
        storage.put(key.clone(), request);
    }
}
