//! The self-signed certificate of a node without a configured one. As upstream, it is signed by a
//! CA of its own whose key is discarded.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use atomic_file::Durability;
use kubelet_host::clock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Validity of a certificate.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// What stands between the node and the time in the name of a kubelet's own CA, as upstream.
const AUTHORITY: &str = "-ca@";

/// Why a certificate cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// Its files cannot be written.
    #[error(
        "cannot store the self-signed certificate in {} (--cert-dir): {source}",
        path.display()
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No kubelet made the files.
    #[error(
        "--cert-dir: {} and {} are not a pair, and were not made by a kubelet: complete or remove \
         them, or set tlsCertFile", certificate.display(), key.display()
    )]
    Foreign {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// It cannot be signed for this node.
    #[error("cannot generate a self-signed certificate for {node_name:?}: {source}")]
    Sign {
        /// The name of the node.
        node_name: String,
        /// The cause.
        source: rcgen::Error,
    },
}

/// The certificate and key files in `dir` (`kubelet.crt`, `kubelet.key`), created if there are none.
/// Those of a kubelet are created again once the certificate has expired or the key is lost; a pair
/// of an administrator is used as it is.
///
/// # Errors
/// The files cannot be created, or those of an administrator are not a pair.
pub fn ensure(dir: &Path, node_name: &str) -> Result<[PathBuf; 2], SelfSignedError> {
    let [certificate, key] = [dir.join("kubelet.crt"), dir.join("kubelet.key")];
    let (has_certificate, has_key) = (certificate.exists(), key.exists());
    let is_somebodys = match has_certificate {
        true => match state(&certificate) {
            CertificateState::Valid if has_key => return Ok([certificate, key]),
            CertificateState::Foreign if has_key => return Ok([certificate, key]),
            CertificateState::Foreign => true,
            CertificateState::Valid | CertificateState::Renewable => false,
        },
        false => has_key,
    };
    if is_somebodys {
        return Err(SelfSignedError::Foreign { certificate, key });
    }
    let (certificate_pem, key_pem) =
        generate(node_name).map_err(|source| SelfSignedError::Sign {
            node_name: node_name.to_owned(),
            source,
        })?;
    let kept = DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        // The key comes last: a certificate without a key is created again.
        .and_then(|()| remove(&key))
        .and_then(|()| {
            atomic_file::replace(
                &certificate,
                certificate_pem.as_bytes(),
                0o644,
                Durability::Synced,
            )
        })
        .and_then(|()| atomic_file::replace(&key, key_pem.as_bytes(), 0o600, Durability::Synced));
    match kept {
        Ok(()) => Ok([certificate, key]),
        Err(source) => Err(SelfSignedError::Io {
            path: dir.to_owned(),
            source,
        }),
    }
}

/// What a certificate file is.
enum CertificateState {
    /// A kubelet's, and valid.
    Valid,
    /// A kubelet's, and expired.
    Renewable,
    /// An administrator's, or unreadable.
    Foreign,
}

fn state(certificate: &Path) -> CertificateState {
    let pem = fs::read(certificate).unwrap_or_default();
    let Ok(der) = CertificateDer::from_pem_slice(&pem) else {
        return CertificateState::Foreign;
    };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else {
        return CertificateState::Foreign;
    };
    let mut issuers = certificate.issuer().iter_common_name();
    if !issuers.any(|name| name.as_str().is_ok_and(is_own_authority)) {
        return CertificateState::Foreign;
    }
    match certificate.validity().not_after.timestamp() > clock::now().as_second() {
        true => CertificateState::Valid,
        false => CertificateState::Renewable,
    }
}

/// Whether a CA has a name as kubelets give: the node, and the time in seconds.
fn is_own_authority(name: &str) -> bool {
    let stamp = name.rsplit_once(AUTHORITY).map(|(_, stamp)| stamp);
    stamp.is_some_and(|stamp| stamp.parse::<u64>().is_ok())
}

fn generate(node_name: &str) -> Result<(String, String), rcgen::Error> {
    let now = SystemTime::from(clock::now());
    // Backdated by an hour, because clocks differ.
    let (from, until) = (now - Duration::from_secs(3600), now + VALIDITY);
    let stamp = clock::now().as_second();

    let mut authority = CertificateParams::new(Vec::new())?;
    let name = format!("{node_name}{AUTHORITY}{stamp}");
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    (authority.not_before, authority.not_after) = (from.into(), until.into());
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);

    let mut own = CertificateParams::new(vec![node_name.to_owned()])?;
    let name = format!("{node_name}@{stamp}");
    own.distinguished_name.push(DnType::CommonName, name);
    own.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (own.not_before, own.not_after) = (from.into(), until.into());
    let key = KeyPair::generate()?;
    let certificate = own.signed_by(&key, &issuer)?;
    Ok((
        certificate.pem() + &authority_certificate.pem(),
        key.serialize_pem(),
    ))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_again_when_its_key_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let [certificate, key] = ensure(&pki, "node-1").unwrap();
        let made = fs::read(&certificate).unwrap();
        let mode = fs::metadata(&key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        ensure(&pki, "node-1").unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), made, "kept");
        fs::remove_file(&key).unwrap();
        ensure(&pki, "node-1").unwrap();
        assert_ne!(fs::read(&certificate).unwrap(), made, "created again");
    }

    #[test]
    fn a_pair_of_an_administrator_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["kubelet.crt", "kubelet.key"].map(|name| dir.path().join(name));
        let own_key = KeyPair::generate().unwrap();
        let mut expired = CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
        expired.not_after = (SystemTime::from(clock::now()) - VALIDITY).into();
        let expired = expired.self_signed(&own_key).unwrap().pem();
        for (text, is_complete) in [(&*expired, true), ("not PEM", true), (&*expired, false)] {
            fs::write(&certificate, text).unwrap();
            fs::write(&key, own_key.serialize_pem()).unwrap();
            if is_complete {
                ensure(dir.path(), "node-1").unwrap();
                assert!(key.exists());
            } else {
                fs::remove_file(&key).unwrap();
                let error = ensure(dir.path(), "node-1").unwrap_err().to_string();
                assert!(error.contains("kubelet.key are not a pair"), "{error}");
            }
            assert_eq!(fs::read_to_string(&certificate).unwrap(), text);
        }
        fs::rename(&certificate, &key).unwrap();
        ensure(dir.path(), "node-1").unwrap_err();
        assert!(key.exists());
    }
}
