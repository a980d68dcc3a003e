//! Rules for names and other short strings in API objects. Each returns what is allowed, in the API
//! server's words.

use std::net::IpAddr;

/// `Err` with what is allowed.
pub type Rule = Result<(), &'static str>;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc')";
const LABEL_LENGTH: &str = "must be no more than 63 characters";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')";
const SUBDOMAIN_LENGTH: &str = "must be no more than 253 characters";
const QUALIFIED: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName', or 'my.name'), with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue', or 'my_value')";

pub(super) fn ensure(holds: bool, rule: &'static str) -> Rule {
    if holds { Ok(()) } else { Err(rule) }
}

/// Whether the text starts and ends with `edge` characters and has only `edge` and `middle`
/// characters in between.
fn shaped(text: &str, edge: impl Fn(u8) -> bool, middle: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if edge(*first) && edge(*last))
        && bytes.iter().all(|byte| edge(*byte) || middle(*byte))
}

fn lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Checks a name of a container, volume, namespace or host.
///
/// # Errors
/// What is allowed.
pub fn dns1123_label(text: &str) -> Rule {
    ensure(text.len() <= 63, LABEL_LENGTH)?;
    ensure(shaped(text, lower_alphanumeric, |byte| byte == b'-'), LABEL)
}

/// Checks a name of a pod or node.
///
/// # Errors
/// What is allowed.
pub fn dns1123_subdomain(text: &str) -> Rule {
    ensure(text.len() <= 253, SUBDOMAIN_LENGTH)?;
    ensure(
        text.split('.')
            .all(|part| shaped(part, lower_alphanumeric, |byte| byte == b'-')),
        SUBDOMAIN,
    )
}

/// Checks a key of a label or annotation.
///
/// # Errors
/// What is allowed.
pub fn qualified_name(text: &str) -> Rule {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            ensure(
                !prefix.is_empty(),
                "prefix part must be non-empty, or left out together with its '/'",
            )?;
            dns1123_subdomain(prefix)?;
            name
        }
        None => text,
    };
    ensure(
        name.len() <= 63,
        "name part must be no more than 63 characters",
    )?;
    ensure(word(name), QUALIFIED)
}

fn word(text: &str) -> bool {
    shaped(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// Checks a value of a label.
///
/// # Errors
/// What is allowed.
pub fn label_value(text: &str) -> Rule {
    ensure(text.len() <= 63, LABEL_LENGTH)?;
    ensure(text.is_empty() || word(text), LABEL_VALUE)
}

/// Checks a name of a container port (IANA service name).
///
/// # Errors
/// What is allowed.
pub fn port_name(text: &str) -> Rule {
    ensure(text.len() <= 15, "must be no more than 15 characters")?;
    ensure(
        text.bytes()
            .all(|byte| lower_alphanumeric(byte) || byte == b'-'),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    )?;
    ensure(
        text.bytes().any(|byte| byte.is_ascii_lowercase()),
        "must contain at least one letter (a-z)",
    )?;
    ensure(!text.contains("--"), "must not contain consecutive hyphens")?;
    ensure(
        !text.starts_with('-') && !text.ends_with('-'),
        "must not begin or end with a hyphen",
    )
}

/// Checks a name of an environment variable: printable ASCII except `=`.
///
/// # Errors
/// What is allowed.
pub fn env_name(text: &str) -> Rule {
    ensure(
        text.bytes()
            .all(|byte| matches!(byte, b' '..=b'~') && byte != b'='),
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

/// Checks a key of a ConfigMap or Secret.
///
/// # Errors
/// What is allowed.
pub fn config_key(text: &str) -> Rule {
    ensure(text.len() <= 253, SUBDOMAIN_LENGTH)?;
    ensure(
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')),
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name')",
    )?;
    ensure(text != ".", "must not be '.'")?;
    ensure(!text.starts_with(".."), "must not start with '..'")
}

/// Checks a name of a sysctl, with dots or slashes.
///
/// # Errors
/// What is allowed.
pub fn sysctl_name(text: &str) -> Rule {
    ensure(text.len() <= 253, SUBDOMAIN_LENGTH)?;
    ensure(
        text.split(['.', '/'])
            .all(|part| shaped(part, lower_alphanumeric, |byte| matches!(byte, b'-' | b'_'))),
        "must consist of lower case alphanumeric segments with '-' or '_' between, separated by '.' or '/' (e.g. 'kernel.shm_rmid_forced')",
    )
}

/// Checks a path inside a volume: relative, without `..`.
///
/// # Errors
/// What is allowed.
pub fn descending_path(text: &str) -> Rule {
    ensure(!text.starts_with('/'), "must be a relative path")?;
    ensure(no_back_step(text).is_ok(), "must not contain '..'")
}

/// Checks whether a text can be a file name.
///
/// # Errors
/// What is allowed.
pub fn path_segment(text: &str) -> Rule {
    ensure(
        !matches!(text, "." | "..") && !text.contains(['/', '\0']),
        "may not be '.' or '..', and may not contain '/'",
    )
}

/// Checks a path that must not contain `..`.
///
/// # Errors
/// What is allowed.
pub fn no_back_step(text: &str) -> Rule {
    ensure(
        text.split('/').all(|part| part != ".."),
        "must not contain '..'",
    )
}

/// Checks an IPv4 or IPv6 address.
///
/// # Errors
/// What is allowed.
pub fn ip(text: &str) -> Rule {
    match text.parse::<IpAddr>() {
        Ok(_) => Ok(()),
        Err(_) => Err("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        for good in ["a", "web-1", "0", &"a".repeat(63)] {
            assert_eq!(dns1123_label(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"a".repeat(64)] {
            assert!(dns1123_label(bad).is_err(), "{bad}");
        }
        assert_eq!(dns1123_subdomain("web-node.example.com"), Ok(()));
        for bad in ["", "a..b", ".a", "a.", "a_b", &"a".repeat(254)] {
            assert!(dns1123_subdomain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_and_values_of_labels() {
        for good in ["app", "app.kubernetes.io/name", "A_b.c-1"] {
            assert_eq!(qualified_name(good), Ok(()), "{good}");
        }
        for bad in ["", "/name", "a/b/c", "Example.com/name", "-a", "a b"] {
            assert!(qualified_name(bad).is_err(), "{bad}");
        }
        assert_eq!(label_value(""), Ok(()));
        assert!(label_value("a b").is_err());
    }

    #[test]
    fn ports_variables_and_paths() {
        for good in ["http", "a-1", "8080-tcp"] {
            assert_eq!(port_name(good), Ok(()), "{good}");
        }
        for bad in ["80", "a--b", "-a", "HTTP", "averylongportname"] {
            assert!(port_name(bad).is_err(), "{bad}");
        }
        assert_eq!(env_name("MY_VAR.x-1"), Ok(()));
        assert!(env_name("A=B").is_err());
        assert!(descending_path("a/../b").is_err() && descending_path("/a").is_err());
        assert_eq!(descending_path("a/b..c"), Ok(()));
    }
}
