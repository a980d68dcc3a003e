//! The engine's address.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::tls::Tls;

/// The address of a Docker engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `unix://<path>`
    Unix(PathBuf),
    /// `tcp://<host>:<port>`, plain HTTP
    Tcp(String),
    /// `tcp://<host>:<port>`, HTTP over TLS
    Tls {
        /// `<host>:<port>`
        address: String,
        /// The directory with the certificates.
        certificates: PathBuf,
    },
}

impl Endpoint {
    /// The same address over TLS, with the certificates in `directory`, which are read to validate
    /// them.
    ///
    /// # Errors
    /// A human-readable reason that names the file.
    pub fn over_tls(self, directory: &Path) -> Result<Self, String> {
        match self {
            Self::Unix(_) => Err(format!(
                "{self} does not use certificates; allowed: with tcp://<host>:<port>"
            )),
            Self::Tcp(address) | Self::Tls { address, .. } => {
                Tls::read(&address, directory).map_err(|error| error.to_string())?;
                Ok(Self::Tls {
                    address,
                    certificates: directory.to_owned(),
                })
            }
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = "allowed: unix://<absolute path>, tcp://<host>:<port>";
        match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(("tcp", address))
                if address.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok()
                }) =>
            {
                Ok(Self::Tcp(address.into()))
            }
            _ => Err(format!("{text:?} is not an engine address; {allowed}")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) | Self::Tls { address, .. } => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["unix:///var/run/docker.sock", "tcp://127.0.0.1:2375"] {
            assert_eq!(good.parse::<Endpoint>().unwrap().to_string(), good);
        }
        for bad in [
            "/var/run/docker.sock",
            "unix://docker.sock",
            "tcp://host",
            "npipe:////./pipe/x",
            "",
        ] {
            assert!(
                bad.parse::<Endpoint>().unwrap_err().contains("allowed"),
                "{bad}"
            );
        }
    }
}
