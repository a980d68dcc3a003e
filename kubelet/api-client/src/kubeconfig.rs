//! Kubeconfig files: how to reach the API server, and this node's credentials.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::config::{AuthInfo, Cluster, Config, Kubeconfig};
use serde_json::Value;

use super::identity::{IdentityError, certified_key};
use tokio_rustls::rustls::sign::CertifiedKey;

/// Why a kubeconfig is unusable.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It cannot be read, is not a kubeconfig, or refers to a missing entry.
    #[error("kubeconfig {}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<kube::config::KubeconfigError>,
    },
    /// Its cluster uses a proxy, which is not supported.
    #[error("kubeconfig {}: proxy-url {url:?}: proxies are not supported yet", path.display())]
    Proxy {
        /// The file.
        path: PathBuf,
        /// The proxy.
        url: String,
    },
    /// Part of its user's client certificate cannot be loaded.
    #[error("kubeconfig {}: {field}: {message}", path.display())]
    User {
        /// The file.
        path: PathBuf,
        /// The field of the user.
        field: &'static str,
        /// The cause.
        message: String,
    },
    /// Its user's client certificate and key are unusable.
    #[error("kubeconfig {}: client certificate: {source}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: IdentityError,
    },
}

/// The current context of a kubeconfig.
#[derive(Clone, Debug)]
pub struct ClusterAccess {
    /// The file.
    pub path: PathBuf,
    /// Server, certificate authorities and user, without the user's client certificate.
    pub config: Config,
    /// The cluster as in the file, with absolute paths.
    pub cluster: Cluster,
    /// The user's client certificate and key; `None` for users with other credentials.
    pub pair: Option<PairSource>,
}

/// A certificate and its key, in PEM.
pub type PemPair = (Vec<u8>, Vec<u8>);

/// The location of a certificate and its key.
#[derive(Clone, Debug)]
pub struct PairSource {
    certificate: Source,
    key: Source,
}

#[derive(Clone)]
enum Source {
    Data(Vec<u8>),
    File(PathBuf),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data(_) => f.write_str("Data"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Source {
    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => fs::read(path).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            }),
        }
    }
}

impl PairSource {
    /// Reads the current certificate and key, in PEM.
    ///
    /// # Errors
    /// A file cannot be read: the field that names it, and the cause.
    pub fn read(&self) -> Result<PemPair, (&'static str, io::Error)> {
        let certificate = self.certificate.read();
        let key = self.key.read();
        Ok((
            certificate.map_err(|error| ("client-certificate", error))?,
            key.map_err(|error| ("client-key", error))?,
        ))
    }

    /// Whether the certificate is in a file, and so may change.
    pub const fn is_in_files(&self) -> bool {
        matches!(self.certificate, Source::File(_))
    }
}

impl ClusterAccess {
    /// Reads a kubeconfig file, but not yet the user's client certificate. Blocks on the file.
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let load = |source| KubeconfigError::Load {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let file = Kubeconfig::read_from(path).map_err(load)?;
        let cluster = cluster(&file).unwrap_or_default();
        // `kube` would also use `HTTPS_PROXY` from the environment, which is not meant for the
        // kubelet's connection to the API server.
        if let Some(url) = cluster.proxy_url.clone().filter(|url| !url.is_empty()) {
            return Err(KubeconfigError::Proxy {
                path: path.to_owned(),
                url,
            });
        }
        let mut config = Config::try_from(file).map_err(load)?;
        let pair =
            take_pair(&mut config.auth_info).map_err(|(field, message)| KubeconfigError::User {
                path: path.to_owned(),
                field,
                message,
            })?;
        Ok(Self {
            path: path.to_owned(),
            config,
            cluster,
            pair,
        })
    }

    /// The same API server, without credentials.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        let mut access = self.clone();
        access.config.auth_info = AuthInfo::default();
        access.pair = None;
        access
    }

    /// Reads the user's current client certificate and key. Blocks on their files.
    ///
    /// # Errors
    /// They cannot be read, or the key does not belong to the certificate.
    pub fn identity(&self) -> Result<Option<CertifiedKey>, KubeconfigError> {
        let Some(pair) = &self.pair else {
            return Ok(None);
        };
        let (certificate, key) = pair
            .read()
            .map_err(|(field, error)| KubeconfigError::User {
                path: self.path.clone(),
                field,
                message: error.to_string(),
            })?;
        certified_key(&certificate, &key)
            .map(Some)
            .map_err(|source| KubeconfigError::Identity {
                path: self.path.clone(),
                source,
            })
    }
}

/// The cluster of the current context.
fn cluster(file: &Kubeconfig) -> Option<Cluster> {
    let name = file.current_context.as_deref()?;
    let context = file.contexts.iter().find(|context| context.name == name)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = file.clusters.iter().find(|named| named.name == *cluster)?;
    cluster.cluster.clone()
}

/// Takes the client certificate out of a user, so that only [`super::identity`] handles it.
fn take_pair(user: &mut AuthInfo) -> Result<Option<PairSource>, (&'static str, String)> {
    let key = user.client_key_data.take();
    // The secret type reveals its content only when serialized.
    let key = AuthInfo {
        client_key_data: key,
        ..AuthInfo::default()
    };
    let key = match serde_json::to_value(&key) {
        Ok(Value::Object(mut fields)) => fields
            .remove("client-key-data")
            .and_then(|value| value.as_str().map(str::to_owned)),
        _ => None,
    };
    let certificate = source(
        "client-certificate-data",
        user.client_certificate_data.take(),
        user.client_certificate.take(),
    )?;
    let key = source("client-key-data", key, user.client_key.take())?;
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(PairSource { certificate, key })),
        (Some(_), None) => Err((
            "client-key",
            "is required together with client-certificate".to_owned(),
        )),
        (None, Some(_)) => Err((
            "client-certificate",
            "is required together with client-key".to_owned(),
        )),
    }
}

/// Inline data takes precedence over a file, as upstream.
fn source(
    field: &'static str,
    data: Option<String>,
    path: Option<String>,
) -> Result<Option<Source>, (&'static str, String)> {
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if given(&data) {
        let data = data.unwrap_or_default();
        return match BASE64_STANDARD.decode(data.trim()) {
            Ok(data) => Ok(Some(Source::Data(data))),
            Err(error) => Err((field, error.to_string())),
        };
    }
    Ok(path
        .filter(|path| !path.is_empty())
        .map(|path| Source::File(PathBuf::from(path))))
}
