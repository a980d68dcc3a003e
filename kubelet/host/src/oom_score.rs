//! The kernel's inclination to end the kubelet itself when memory runs out.

use std::{fs, io};

use tracing::warn;

const PATH: &str = "/proc/self/oom_score_adj";

/// Gives this process `score` (`oomScoreAdj`), from -1000, never, to 1000, first. Without
/// CAP_SYS_RESOURCE it cannot be less than it was; the log says so.
pub fn set(score: i32) {
    let is = || fs::read_to_string(PATH).map(|text| text.trim().parse() == Ok(score));
    let set = fs::write(PATH, score.to_string()).or_else(|error| match is() {
        Ok(true) => Ok(()),
        _ => Err::<(), io::Error>(error),
    });
    if let Err(error) = set {
        warn!(
            score, %error,
            "cannot set oomScoreAdj (--oom-score-adj); grant the kubelet CAP_SYS_RESOURCE, set \
             the score from outside (OOMScoreAdjust in a systemd unit), or raise the field"
        );
    }
}
