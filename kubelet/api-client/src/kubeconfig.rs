//! Kubeconfig files: how to reach the API server, and this node's credentials.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::Uri;
use kubelet_pod_spec::{
    json::{self, TypeError},
    yaml::{self, DuplicateKeys, SyntaxError},
};
use tokio_rustls::rustls::sign::CertifiedKey;

pub use self::file::Cluster;
use self::file::KubeconfigFile;
#[cfg(test)]
pub(crate) use self::file::Secret;
pub(crate) use self::file::{ExecConfig, User};
use super::identity::{IdentityError, certified_key};

mod file;

/// Why a kubeconfig is unusable.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file cannot be read.
    #[error("kubeconfig {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not valid YAML.
    #[error("kubeconfig {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        source: SyntaxError,
    },
    /// A field has a value of the wrong type.
    #[error("kubeconfig {}: {source}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The field and the error.
        source: TypeError,
    },
    /// It refers to a missing entry, or a field of its cluster or user is unusable.
    #[error("kubeconfig {}: {field}: {message}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
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

/// A field, and why it is unusable.
type Fault = (&'static str, String);

/// The current context of a kubeconfig.
#[derive(Clone, Debug)]
pub struct ClusterAccess {
    /// The file.
    pub path: PathBuf,
    /// URL of the API server.
    pub url: Uri,
    /// The cluster as in the file, with absolute paths.
    pub cluster: Cluster,
    /// The user's client certificate and key; `None` for users with other credentials.
    pub pair: Option<PairSource>,
    /// The user's other credentials.
    pub(crate) user: User,
}

/// A certificate and its key, in PEM.
pub type PemPair = (Vec<u8>, Vec<u8>);

/// The location of a certificate and its key.
#[derive(Clone, Debug)]
pub struct PairSource {
    certificate: Source,
    key: Source,
}

/// Data of a kubeconfig, or the file that contains it.
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
    /// Inline data takes precedence over a file, as upstream.
    fn new(field: &'static str, data: &str, path: &str) -> Result<Option<Self>, Fault> {
        if data.is_empty() {
            return Ok((!path.is_empty()).then(|| Self::File(PathBuf::from(path))));
        }
        let data: String = data.split_ascii_whitespace().collect();
        match BASE64_STANDARD.decode(data) {
            Ok(data) => Ok(Some(Self::Data(data))),
            Err(error) => Err((field, error.to_string())),
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => fs::read(path).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            }),
        }
    }
}

impl Cluster {
    /// The certificate authorities, in PEM; `None` if those of this machine apply. Blocks on their
    /// file.
    pub(crate) fn authorities(&self) -> Result<Option<Vec<u8>>, Fault> {
        let source = Source::new(
            "certificate-authority-data",
            &self.certificate_authority_data,
            &self.certificate_authority,
        )?;
        let text = source.map(|source| source.read()).transpose();
        text.map_err(|error| ("certificate-authority", error.to_string()))
    }
}

impl PairSource {
    fn of(user: &User) -> Result<Option<Self>, Fault> {
        let certificate = Source::new(
            "client-certificate-data",
            &user.client_certificate_data,
            &user.client_certificate,
        )?;
        let key = Source::new("client-key-data", &user.client_key_data.0, &user.client_key)?;
        let lacks = |field, other| Err((field, format!("is required together with {other}")));
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key })),
            (Some(_), None) => lacks("client-key", "client-certificate"),
            (None, Some(_)) => lacks("client-certificate", "client-key"),
        }
    }

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
    /// Reads a kubeconfig file, but not yet the files that it refers to. Blocks on the file.
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let file = read(path)?;
        Self::of_current_context(path, &file).map_err(|fault| field_error(path, fault))
    }

    fn of_current_context(path: &Path, file: &KubeconfigFile) -> Result<Self, Fault> {
        let missing =
            |field, kind: &str, name: &str| (field, format!("there is no {kind} {name:?}"));
        let name = &file.current_context;
        let context = file.context(name);
        let context = context.ok_or_else(|| missing("current-context", "context", name))?;
        let cluster = file.cluster(&context.cluster);
        let cluster = cluster.ok_or_else(|| missing("cluster", "cluster", &context.cluster))?;
        // As upstream, a context may name no user, or one without an entry.
        let mut user = file.user(&context.user).cloned().unwrap_or_default();
        let mut cluster = cluster.clone();
        if let Some(dir) = path.parent() {
            cluster.make_absolute(dir);
            user.make_absolute(dir);
        }
        if let Some(provider) = &user.auth_provider {
            let name = &provider.name;
            let message = format!("{name:?}: these plugins are not supported; use exec");
            return Err(("auth-provider", message));
        }
        let server = &cluster.server;
        let url = match cluster.url().parse::<Uri>() {
            Ok(url) if matches!(url.scheme_str(), Some("http" | "https")) => url,
            Ok(_) => return Err(("server", format!("{server:?} is not an HTTP URL"))),
            Err(error) => return Err(("server", format!("{server:?}: {error}"))),
        };
        let pair = PairSource::of(&user)?;
        Ok(Self {
            path: path.to_owned(),
            url,
            cluster,
            pair,
            user,
        })
    }

    /// The same API server, without credentials.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        Self {
            user: User::default(),
            pair: None,
            ..self.clone()
        }
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
            .map_err(|(field, error)| self.field_error((field, error.to_string())))?;
        certified_key(&certificate, &key)
            .map(Some)
            .map_err(|source| KubeconfigError::Identity {
                path: self.path.clone(),
                source,
            })
    }

    /// The error of a field of the current context.
    pub(crate) fn field_error(&self, fault: Fault) -> KubeconfigError {
        field_error(&self.path, fault)
    }
}

fn field_error(path: &Path, (field, message): Fault) -> KubeconfigError {
    KubeconfigError::Field {
        path: path.to_owned(),
        field,
        message,
    }
}

/// Reads the first document of a file, as upstream.
fn read(path: &Path) -> Result<KubeconfigFile, KubeconfigError> {
    let text = fs::read_to_string(path).map_err(|source| KubeconfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let documents = yaml::documents(&text, DuplicateKeys::Refuse);
    let documents = documents.map_err(|source| KubeconfigError::Parse {
        path: path.to_owned(),
        source,
    })?;
    let Some(mut document) = documents.into_iter().next() else {
        return Ok(KubeconfigFile::default());
    };
    yaml::remove_nulls(&mut document);
    json::from_value(&document).map_err(|source| KubeconfigError::Type {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
