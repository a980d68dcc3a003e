//! Registry credentials in the docker CLI's files, and the choice of those that match a repository.

pub mod docker_config;
pub mod docker_config_files;
pub mod keyring;
pub mod registry_url;

use std::fmt;

/// User name and password for a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
    /// The user's email address. It is not sent to the registry.
    pub email: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        let credential = Credential {
            password: "hidden".to_owned(),
            ..Credential::default()
        };
        assert!(!format!("{credential:?}").contains("hidden"));
    }
}
