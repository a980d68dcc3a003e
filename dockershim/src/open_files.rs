//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Each container that runs has two files open, its
/// log and the engine's; the soft limit that service managers give, 1024, is for programs
/// that cannot have more.
///
/// # Errors
/// The system's; the limit stays.
pub fn raise_limit() -> std::io::Result<()> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limits = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(1024),
            ..limits
        };
        setrlimit(Resource::Nofile, low).unwrap();
        raise_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, limits.maximum);
    }
}
