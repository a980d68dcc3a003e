//! AppArmor profiles as engine options.

use cri_proto::runtime::v1::{SecurityProfile, security_profile::ProfileType};

use crate::Error;

const LOCALHOST_PREFIX: &str = "localhost/";

/// The option for a profile; `None` keeps the engine's default, which is CRI's `RuntimeDefault`.
/// `legacy` is the deprecated string that `profile` replaces.
///
/// # Errors
/// `InvalidArgument` for a local profile without a name.
pub(super) fn option(
    profile: Option<&SecurityProfile>,
    legacy: &str,
) -> Result<Option<String>, Error> {
    const FIELD: &str = "linux.security_context.apparmor";
    let name = match profile {
        Some(profile) => match profile.profile_type() {
            ProfileType::RuntimeDefault => return Ok(None),
            ProfileType::Unconfined => "unconfined",
            ProfileType::Localhost => &profile.localhost_ref,
        },
        None => match legacy {
            "" | "runtime/default" => return Ok(None),
            "unconfined" => "unconfined",
            local => local.strip_prefix(LOCALHOST_PREFIX).ok_or_else(|| {
                Error::invalid(
                    "linux.security_context.apparmor_profile",
                    format!("{local:?}; allowed: runtime/default, unconfined, localhost/<profile>"),
                )
            })?,
        },
    };
    let name = name.strip_prefix(LOCALHOST_PREFIX).unwrap_or(name);
    if name.is_empty() {
        return Err(Error::invalid(
            FIELD,
            "a Localhost profile requires localhost_ref",
        ));
    }
    Ok(Some(format!("apparmor={name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(kind: ProfileType, name: &str) -> SecurityProfile {
        SecurityProfile {
            profile_type: kind.into(),
            localhost_ref: name.into(),
        }
    }

    #[test]
    fn profiles() {
        let option = |p: &SecurityProfile| option(Some(p), "").unwrap();
        assert_eq!(option(&profile(ProfileType::RuntimeDefault, "")), None);
        assert_eq!(
            option(&profile(ProfileType::Unconfined, "")).as_deref(),
            Some("apparmor=unconfined")
        );
        assert_eq!(
            option(&profile(ProfileType::Localhost, "localhost/mine")).as_deref(),
            Some("apparmor=mine")
        );
        assert!(super::option(Some(&profile(ProfileType::Localhost, "")), "").is_err());
        assert!(super::option(None, "mine").is_err());
    }
}
