//! A certificate authority, and the certificates of an engine and its client.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority of one test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name.
    pub(crate) fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Writes the certificates with the file names of Docker clients, over existing ones.
pub(crate) fn write(directory: &Path, authority: &Authority, identity: &Identity) {
    for (name, text) in [
        ("ca.pem", &authority.pem()),
        ("cert.pem", &identity.certificate),
        ("key.pem", &identity.key),
    ] {
        std::fs::write(directory.join(name), text).unwrap();
    }
}
