//! The limit on open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. Each running container keeps two files open, its log
/// and the engine's; service managers set a soft limit of 1024, which is only needed by programs
/// that cannot handle more descriptors.
///
/// # Errors
/// The system's; the limit is unchanged.
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
