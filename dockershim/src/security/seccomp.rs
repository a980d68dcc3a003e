//! Seccomp profiles as engine options.

use cri_proto::runtime::v1::{SecurityProfile, security_profile::ProfileType};

use crate::{Error, bounded_file};

const FIELD: &str = "linux.security_context.seccomp";
const LOCALHOST_PREFIX: &str = "localhost/";
/// The size limit of a profile, in bytes; the engine's own is 12 KiB.
const LARGEST_PROFILE: u64 = 1 << 20;

/// The option for a profile; `None` keeps the engine's default, which is CRI's `RuntimeDefault`. No
/// profile means unconfined, as in Kubernetes.
///
/// # Errors
/// `InvalidArgument` for a local profile that is not an absolute path or not a JSON object; `File`
/// if it cannot be read or is larger than 1 MiB.
pub(super) async fn option(profile: Option<&SecurityProfile>) -> Result<Option<String>, Error> {
    let unconfined = Ok(Some("seccomp=unconfined".to_owned()));
    let Some(profile) = profile else {
        return unconfined;
    };
    match profile.profile_type() {
        ProfileType::RuntimeDefault => Ok(None),
        ProfileType::Unconfined => unconfined,
        ProfileType::Localhost => {
            let path = &profile.localhost_ref;
            let path = path.strip_prefix(LOCALHOST_PREFIX).unwrap_or(path);
            if !path.starts_with('/') {
                return Err(Error::invalid(
                    format!("{FIELD}.localhost_ref"),
                    format!("{path:?} is not an absolute path"),
                ));
            }
            let text = bounded_file::read_apart(path, LARGEST_PROFILE);
            let text = text.await.map_err(|source| Error::File {
                action: "read the seccomp profile",
                path: path.into(),
                source,
            })?;
            // The engine takes the profile's content, on one line.
            let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text)
                .map_err(|error| {
                    Error::invalid(format!("{FIELD}.localhost_ref"), format!("{path}: {error}"))
                })?;
            Ok(Some(format!("seccomp={}", serde_json::Value::Object(json))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(path: &str) -> SecurityProfile {
        SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: path.into(),
        }
    }

    #[tokio::test]
    async fn a_local_profile_is_read_into_the_option() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "{\n \"defaultAction\": \"SCMP_ACT_ALLOW\"\n}").unwrap();
        let path = file.path().to_str().unwrap();
        let option = option(Some(&local(&format!("localhost/{path}"))))
            .await
            .unwrap();
        assert_eq!(
            option.as_deref(),
            Some(r#"seccomp={"defaultAction":"SCMP_ACT_ALLOW"}"#)
        );
    }

    #[tokio::test]
    async fn a_local_profile_that_cannot_be_used_is_named() {
        let error = option(Some(&local("profiles/x.json"))).await.unwrap_err();
        assert!(error.to_string().contains("profiles/x.json"), "{error}");
        let error = option(Some(&local("/nonexistent/x.json")))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.json"), "{error}");
    }

    #[tokio::test]
    async fn no_profile_is_unconfined() {
        assert_eq!(
            option(None).await.unwrap().as_deref(),
            Some("seccomp=unconfined")
        );
        let default = SecurityProfile::default();
        assert_eq!(option(Some(&default)).await.unwrap(), None);
    }
}
