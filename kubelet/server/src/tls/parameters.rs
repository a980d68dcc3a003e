//! TLS versions and cipher suites of the secure port (`tlsMinVersion`, `tlsCipherSuites`), with the
//! names that upstream takes from Go.

use tokio_rustls::rustls::{
    SupportedCipherSuite, SupportedProtocolVersion,
    crypto::ring::{self, cipher_suite},
    version::{TLS12, TLS13},
};

/// Values of the minimum version.
const VERSIONS: [&str; 4] = [
    "VersionTLS10",
    "VersionTLS11",
    "VersionTLS12",
    "VersionTLS13",
];

/// Configurable cipher suites, all of TLS 1.2; those of TLS 1.3 are always enabled, as in Go.
const SUITES: &[(&str, SupportedCipherSuite)] = &[
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Names that upstream accepts too. These suites are always enabled, or too weak to be supported.
const IGNORED: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// TLS versions and cipher suites of the secure port.
#[derive(Clone, Debug)]
pub struct TlsParameters {
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    pub(super) cipher_suites: Vec<SupportedCipherSuite>,
}

impl Default for TlsParameters {
    /// TLS 1.2 and 1.3 with all suites.
    fn default() -> Self {
        Self {
            versions: vec![&TLS13, &TLS12],
            cipher_suites: ring::DEFAULT_CIPHER_SUITES.to_vec(),
        }
    }
}

impl TlsParameters {
    /// Parses the fields' values; empty ones mean the defaults.
    ///
    /// # Errors
    /// The invalid fields, with value and allowed values.
    pub fn parse(min_version: &str, cipher_suites: &[String]) -> Result<Self, Vec<String>> {
        let mut parameters = Self::default();
        let mut faults = Vec::new();
        match min_version {
            "VersionTLS13" => parameters.versions = vec![&TLS13],
            // TLS 1.2 is the oldest supported version.
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => {}
            other => faults.push(format!(
                "tlsMinVersion: invalid value {other:?}: must be one of: {}",
                VERSIONS.join(", ")
            )),
        }
        for name in cipher_suites {
            if !is_known(name) {
                let known: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
                faults.push(format!(
                    "tlsCipherSuites: invalid value {name:?}: must be one of: {}",
                    known.join(", ")
                ));
            }
        }
        if !cipher_suites.is_empty() {
            let chosen = |suite: &SupportedCipherSuite| {
                suite.tls13().is_some()
                    || SUITES.iter().any(|(name, known)| {
                        known == suite && cipher_suites.iter().any(|n| n == name)
                    })
            };
            parameters.cipher_suites.retain(chosen);
            let has_tls12 = parameters
                .cipher_suites
                .iter()
                .any(|suite| suite.tls13().is_none());
            if !has_tls12 {
                parameters.versions = vec![&TLS13];
            }
        }
        if faults.is_empty() {
            Ok(parameters)
        } else {
            Err(faults)
        }
    }
}

fn is_known(name: &str) -> bool {
    SUITES.iter().any(|(known, _)| *known == name) || IGNORED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(version: &str, suites: &[&str]) -> Result<TlsParameters, Vec<String>> {
        let suites: Vec<String> = suites.iter().map(|name| (*name).to_owned()).collect();
        TlsParameters::parse(version, &suites)
    }

    #[test]
    fn versions_and_suites_are_taken_by_name() {
        assert_eq!(parse("", &[]).unwrap().versions.len(), 2);
        assert_eq!(parse("VersionTLS10", &[]).unwrap().versions.len(), 2);
        assert_eq!(parse("VersionTLS13", &[]).unwrap().versions, [&TLS13]);
        let some = parse(
            "VersionTLS12",
            &[
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "TLS_RSA_WITH_AES_128_GCM_SHA256",
            ],
        )
        .unwrap();
        let tls12 = some
            .cipher_suites
            .iter()
            .filter(|suite| suite.tls13().is_none());
        assert_eq!(tls12.count(), 1);
        let weak = parse("", &["TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap();
        assert_eq!(
            weak.versions,
            [&TLS13],
            "no suite is left of what was asked for"
        );
    }

    #[test]
    fn names_that_nobody_knows_are_told_with_those_that_are_known() {
        let faults = parse("TLS1.2", &["AES"]).unwrap_err();
        assert!(faults[0].contains("tlsMinVersion") && faults[0].contains("VersionTLS12"));
        assert!(
            faults[1].contains("\"AES\"")
                && faults[1].contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
        );
    }
}
