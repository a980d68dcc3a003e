//! The flags of the checkpoint for starts without the API server.

use crate::config::flags::Flags;

/// Checks that each flag comes with the flags that it requires.
///
/// # Errors
/// Which flag is missing.
pub(super) fn check(flags: &Flags) -> Result<(), &'static str> {
    let path = flags.bootstrap_checkpoint_path.as_ref();
    if flags.bootstrap_checkpoint_key.is_some() && path.is_none() {
        return Err(
            "--bootstrap-checkpoint-key: requires --bootstrap-checkpoint-path, where secrets are \
             stored",
        );
    }
    if path.is_some() && flags.kubeconfig.is_none() {
        return Err(
            "--bootstrap-checkpoint-path: requires --kubeconfig; it stores the pods of the API \
             server",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::{Command, parse};

    fn flags(args: &[&str]) -> Result<Flags, String> {
        let args = ["kubelet"].iter().chain(args);
        match parse(args) {
            Ok(Command::Run(flags)) => Ok(*flags),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn each_needs_what_it_builds_on() {
        let error = flags(&["--bootstrap-checkpoint-key=/key"]).unwrap_err();
        assert!(
            error.contains("requires --bootstrap-checkpoint-path"),
            "{error}"
        );
        let error = flags(&["--bootstrap-checkpoint-path=/c"]).unwrap_err();
        assert!(error.contains("requires --kubeconfig"), "{error}");
        let flags = flags(&[
            "--kubeconfig=/k",
            "--bootstrap-checkpoint-path=/c",
            "--bootstrap-checkpoint-key=/key",
        ])
        .unwrap();
        assert_eq!(flags.bootstrap_checkpoint_path, Some(PathBuf::from("/c")));
        assert_eq!(flags.bootstrap_checkpoint_key, Some(PathBuf::from("/key")));
    }
}
