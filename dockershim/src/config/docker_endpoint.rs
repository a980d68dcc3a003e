//! The engine's address and TLS certificates, from the flags and the environment variables of the
//! Docker CLI.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::ConfigError;
use crate::engine::Endpoint;

const ENDPOINT: &str = "docker-endpoint";
const CERTIFICATES: &str = "docker-cert-path";
/// The environment variable with the certificate directory.
const DIRECTORY: &str = "DOCKER_CERT_PATH";
/// Environment variables that make the Docker CLI use TLS, whatever their values.
const SWITCHES: [&str; 2] = ["DOCKER_TLS_VERIFY", "DOCKER_TLS"];

/// Builds the engine's endpoint from the values of the two flags. If `directory` is empty,
/// `environment` supplies the certificate directory.
///
/// # Errors
/// [`ConfigError`] that names the flag, and the variable or file if that is the cause.
pub(super) fn read(
    address: &str,
    directory: &str,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Endpoint, ConfigError> {
    let bad = |flag: &'static str, reason: String| ConfigError { flag, reason };
    let endpoint: Endpoint = address.parse().map_err(|reason| bad(ENDPOINT, reason))?;
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    let secure = |endpoint: Endpoint, directory: &Path, source: &str| {
        endpoint
            .over_tls(directory)
            .map_err(|reason| bad(CERTIFICATES, format!("{source}{reason}")))
    };
    if !directory.is_empty() {
        return secure(endpoint, Path::new(directory), "");
    }
    if let Endpoint::Unix(_) = endpoint {
        return Ok(endpoint);
    }
    if let Some(directory) = set(DIRECTORY) {
        return secure(endpoint, &PathBuf::from(directory), "DOCKER_CERT_PATH: ");
    }
    match SWITCHES.into_iter().find(|name| set(name).is_some()) {
        Some(switch) => Err(bad(
            CERTIFICATES,
            format!(
                "required when {switch} is set, unless {DIRECTORY} is set; allowed: a directory \
                 with ca.pem, cert.pem and key.pem (~/.docker is not used)"
            ),
        )),
        None => Ok(endpoint),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ADDRESS: &str = "tcp://127.0.0.1:2376";

    fn read_with(
        address: &str,
        directory: &str,
        environment: &[(&str, &str)],
    ) -> Result<Endpoint, String> {
        let environment = |name: &str| {
            let found = environment.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).into())
        };
        read(address, directory, environment).map_err(|error| error.to_string())
    }

    /// A directory with certificates.
    fn certificates() -> tempfile::TempDir {
        let own = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("ca.pem", own.cert.pem()),
            ("cert.pem", own.cert.pem()),
            ("key.pem", own.signing_key.serialize_pem()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn the_flag_and_dockers_variable_have_the_engine_verified() {
        let dir = certificates();
        let path = dir.path().to_str().unwrap();
        let expected = Ok(Endpoint::Tls {
            address: "127.0.0.1:2376".into(),
            certificates: path.into(),
        });
        assert_eq!(read_with(ADDRESS, path, &[]), expected);
        let cert_path = ("DOCKER_CERT_PATH", path);
        // The Docker CLI does not verify the engine in the first case.
        for environment in [
            [cert_path, ("DOCKER_TLS_VERIFY", "")],
            [cert_path, ("DOCKER_TLS_VERIFY", "1")],
        ] {
            assert_eq!(read_with(ADDRESS, "", &environment), expected);
        }
        let elsewhere = [("DOCKER_CERT_PATH", "/nonexistent")];
        assert_eq!(read_with(ADDRESS, path, &elsewhere), expected);
        let plain = Ok(Endpoint::Tcp("127.0.0.1:2376".into()));
        let unset = [("DOCKER_TLS_VERIFY", ""), ("DOCKER_CERT_PATH", "")];
        assert_eq!(read_with(ADDRESS, "", &unset), plain);
    }

    #[test]
    fn a_socket_of_this_machine_needs_no_certificates() {
        let socket = "unix:///run/docker.sock";
        let environment = [("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/x")];
        let expected = Ok(Endpoint::Unix("/run/docker.sock".into()));
        assert_eq!(read_with(socket, "", &environment), expected);
        let refused = read_with(socket, "/x", &[]).unwrap_err();
        assert!(refused.starts_with("--docker-cert-path: "), "{refused}");
        assert!(refused.contains("tcp://"), "{refused}");
    }

    #[test]
    fn tls_without_a_directory_is_refused_by_name() {
        for name in ["DOCKER_TLS_VERIFY", "DOCKER_TLS"] {
            let refused = read_with(ADDRESS, "", &[(name, "0")]).unwrap_err();
            for part in ["--docker-cert-path: ", name, "DOCKER_CERT_PATH", "allowed"] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_field() {
        for file in ["ca.pem", "cert.pem", "key.pem"] {
            let dir = certificates();
            let path = dir.path().join(file);
            let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
            let begun = "-----BEGIN CERTIFICATE-----\nAAAA";
            for text in [Some(""), Some(begun), Some(&*other), None] {
                match text {
                    Some(text) => fs::write(&path, text).unwrap(),
                    None => fs::remove_file(&path).unwrap(),
                }
                let directory = dir.path().to_str().unwrap();
                let named = path.to_str().unwrap();
                let by_flag = read_with(ADDRESS, directory, &[]).unwrap_err();
                assert!(by_flag.starts_with("--docker-cert-path: "), "{by_flag}");
                assert!(by_flag.contains(named), "{by_flag}");
                let environment = [("DOCKER_CERT_PATH", directory)];
                let by_variable = read_with(ADDRESS, "", &environment).unwrap_err();
                assert!(by_variable.contains("DOCKER_CERT_PATH: "), "{by_variable}");
                assert!(by_variable.contains(named), "{by_variable}");
            }
        }
    }
}
