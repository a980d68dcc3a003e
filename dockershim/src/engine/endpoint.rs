//! Where the engine listens.

use std::{fmt, path::PathBuf, str::FromStr};

/// The address of a Docker engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `unix://<path>`
    Unix(PathBuf),
    /// `tcp://<host>:<port>`, plain HTTP
    Tcp(String),
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
            _ => Err(format!("{text:?} is no engine address; {allowed}")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
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
