//! The docker CLI's file of registry credentials, in its two formats.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::{Deserialize, de::Error as _};

use crate::Credential;

/// Credentials by registry: a host, which may contain globs, and an optional path.
pub type DockerConfig = BTreeMap<String, Credential>;

/// Padding is optional: writers of these files differ in it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a text is not a docker configuration. Never quotes the text, which contains passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    /// The text is not JSON, or has another structure.
    #[error("line {line}, column {column}: not a Docker configuration in JSON")]
    Json {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error.
        column: usize,
    },
    /// The `auth` of an entry is malformed.
    #[error("auth of {registry:?}: must be username:password in base64")]
    Auth {
        /// The registry of the entry.
        registry: String,
    },
}

#[derive(Deserialize)]
struct ConfigJson {
    auths: Option<BTreeMap<String, Option<Entry>>>,
}

#[derive(Default, Deserialize)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
}

/// Parses a `config.json`, or the data of a `kubernetes.io/dockerconfigjson` secret.
///
/// # Errors
/// The bytes are not in this format.
pub fn from_config_json(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    let config: ConfigJson = parse(bytes)?;
    entries(config.auths.unwrap_or_default())
}

/// Parses a `.dockercfg`, or the data of a `kubernetes.io/dockercfg` secret.
///
/// # Errors
/// The bytes are not in this format.
pub fn from_dockercfg(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    entries(parse(bytes)?)
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DockerConfigError> {
    // Decoding from text, as everywhere else: a second kind of input adds a copy of the decoders.
    let text = std::str::from_utf8(bytes).map_err(serde_json::Error::custom);
    text.and_then(serde_json::from_str)
        .map_err(|error| DockerConfigError::Json {
            line: error.line(),
            column: error.column(),
        })
}

fn entries(raw: BTreeMap<String, Option<Entry>>) -> Result<DockerConfig, DockerConfigError> {
    raw.into_iter()
        .map(|(registry, entry)| {
            let entry = entry.unwrap_or_default();
            let mut credential = Credential {
                username: entry.username.unwrap_or_default(),
                password: entry.password.unwrap_or_default(),
                email: entry.email.unwrap_or_default(),
            };
            if let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) {
                let Some((username, password)) = decode(&auth) else {
                    return Err(DockerConfigError::Auth { registry });
                };
                credential.username = username;
                credential.password = password;
            }
            Ok((registry, credential))
        })
        .collect()
}

fn decode(auth: &str) -> Option<(String, String)> {
    let unbroken: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let text = String::from_utf8(BASE64.decode(unbroken).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(config: &DockerConfig, registry: &str) -> (String, String) {
        let credential = &config[registry];
        (credential.username.clone(), credential.password.clone())
    }

    #[test]
    fn both_forms_are_read() {
        let json = br#"{"auths": {"a.example": {"auth": "dXNlcjpwYTpzcw=="}, "b.example": null},
            "credsStore": "x", "HttpHeaders": {"A": "b"}}"#;
        let config = from_config_json(json).unwrap();
        let expected = ("user".to_owned(), "pa:ss".to_owned());
        assert_eq!(pair(&config, "a.example"), expected);
        assert_eq!(pair(&config, "b.example"), Default::default());
        let legacy = br#"{"https://a.example/v1/":
            {"username": "user", "password": "pa:ss", "email": "e"}}"#;
        let config = from_dockercfg(legacy).unwrap();
        assert_eq!(pair(&config, "https://a.example/v1/"), expected);
        assert_eq!(from_config_json(b"{}"), Ok(DockerConfig::new()));
    }

    #[test]
    fn auth_wins_and_may_lack_padding() {
        for auth in [
            "dXNlcjpwYTpzcw==",
            "dXNlcjpwYTpzcw",
            "dXNlcjpw\\nYTpzcw==\\n",
        ] {
            let json = format!(r#"{{"a": {{"username": "x", "auth": "{auth}"}}}}"#);
            let config = from_dockercfg(json.as_bytes()).unwrap();
            assert_eq!(pair(&config, "a"), ("user".to_owned(), "pa:ss".to_owned()));
        }
    }

    #[test]
    fn faults_do_not_quote() {
        let error = from_config_json(br#"{"auths": "hidden"}"#).unwrap_err();
        assert!(!error.to_string().contains("hidden"), "{error}");
        // The first is not base64; the second has no colon.
        for auth in ["!", "dXNlcg=="] {
            let json = format!(r#"{{"auths": {{"a": {{"auth": "{auth}"}}}}}}"#);
            assert_eq!(
                from_config_json(json.as_bytes()).unwrap_err().to_string(),
                "auth of \"a\": must be username:password in base64"
            );
        }
    }
}
