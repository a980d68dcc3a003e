//! TLS versions, cipher suites and key exchanges of the secure port (`tlsMinVersion`,
//! `tlsCipherSuites`, `tlsCurvePreferences`), with the names that upstream takes from Go.

use tokio_rustls::rustls::{
    SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{
        SupportedKxGroup,
        ring::{self, cipher_suite, kx_group},
    },
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

/// Key exchanges by number, as in TLS.
const CURVES: [(i32, &dyn SupportedKxGroup); 3] = [
    (23, kx_group::SECP256R1),
    (24, kx_group::SECP384R1),
    (29, kx_group::X25519),
];

/// Key exchanges that upstream has and this kubelet lacks: they are left out.
/// P-521, SecP256r1MLKEM768, X25519MLKEM768 and SecP384r1MLKEM1024.
const LACKING_CURVES: [i32; 4] = [25, 4587, 4588, 4589];

/// TLS versions, cipher suites and key exchanges of the secure port.
#[derive(Clone, Debug)]
pub struct TlsParameters {
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    pub(super) cipher_suites: Vec<SupportedCipherSuite>,
    pub(super) key_exchanges: Vec<&'static dyn SupportedKxGroup>,
}

impl Default for TlsParameters {
    /// TLS 1.2 and 1.3 with all suites and key exchanges.
    fn default() -> Self {
        Self {
            versions: vec![&TLS13, &TLS12],
            cipher_suites: ring::DEFAULT_CIPHER_SUITES.to_vec(),
            key_exchanges: ring::ALL_KX_GROUPS.to_vec(),
        }
    }
}

impl TlsParameters {
    /// Parses the fields' values; empty ones mean the defaults.
    ///
    /// # Errors
    /// The invalid fields, with value and allowed values.
    pub fn parse(
        min_version: &str,
        cipher_suites: &[String],
        curves: &[i32],
    ) -> Result<Self, Vec<String>> {
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
        if !curves.is_empty() {
            parameters.key_exchanges.clear();
        }
        for (at, curve) in curves.iter().enumerate() {
            let known = CURVES.iter().find(|(number, _)| number == curve);
            match known {
                _ if curves[..at].contains(curve) => faults.push(format!(
                    "tlsCurvePreferences: invalid value {curve}: must not be repeated"
                )),
                Some((_, key_exchange)) => parameters.key_exchanges.push(*key_exchange),
                None if LACKING_CURVES.contains(curve) => {}
                None => faults.push(format!(
                    "tlsCurvePreferences: invalid value {curve}: this kubelet has 23 (P-256), 24 \
                     (P-384) and 29 (X25519)"
                )),
            }
        }
        if parameters.key_exchanges.is_empty() && faults.is_empty() {
            faults.push(format!(
                "tlsCurvePreferences: invalid value {curves:?}: this kubelet has only 23 (P-256), \
                 24 (P-384) and 29 (X25519)"
            ));
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
        TlsParameters::parse(version, &suites, &[])
    }

    #[test]
    fn key_exchanges_are_taken_by_number() {
        let parse = |curves: &[i32]| TlsParameters::parse("", &[], curves);
        let names = |curves| {
            let names = parse(curves).unwrap().key_exchanges.into_iter();
            names
                .map(|it| format!("{:?}", it.name()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[24, 29]), ["secp384r1", "X25519"]);
        assert_eq!(names(&[]).len(), 3);
        assert_eq!(names(&[4588, 29]), ["X25519"]);
        let faults = parse(&[23, 23, 22]).unwrap_err();
        assert!(faults[0].contains("23: must not be repeated"), "{faults:?}");
        assert!(
            faults[1].contains("22: this kubelet has 23 (P-256)"),
            "{faults:?}"
        );
        let faults = parse(&[4588]).unwrap_err();
        assert!(faults[0].contains("has only 23 (P-256)"), "{faults:?}");
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
