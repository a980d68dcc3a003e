//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Lets this process have `most` files open (`maxOpenFiles`). Where it may not have as many
/// it has as many as it may, and the log says so.
pub fn set_limit(most: u64) {
    let wanted = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    let Err(error) = setrlimit(Resource::Nofile, wanted) else {
        return;
    };
    let limits = getrlimit(Resource::Nofile);
    let fewer = Rlimit {
        current: limits.maximum,
        ..limits
    };
    let raised = setrlimit(Resource::Nofile, fewer);
    let has = getrlimit(Resource::Nofile).current;
    warn!(
        wanted = most, has, %error, raised = raised.is_ok(),
        "maxOpenFiles (--max-open-files) exceeds the hard limit of this process; raise the limit \
         (LimitNOFILE in a systemd unit), or lower the field"
    );
}
