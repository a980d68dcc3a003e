//! CPU amounts in the units of the kernel's scheduler.

/// The smallest quota that the kernel accepts, in microseconds.
pub const MIN_QUOTA: i64 = 1000;
/// The smallest weight that the kernel accepts.
pub const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const MILLI_CPU: i64 = 1000;

/// The weight (`cpu.shares`) of a request in millicores.
pub fn shares(millis: i64) -> i64 {
    (millis.saturating_mul(SHARES_PER_CPU) / MILLI_CPU).clamp(MIN_SHARES, MAX_SHARES)
}

/// The request in millicores of a weight, rounded up.
pub const fn shares_to_millis(shares: i64) -> i64 {
    (shares.saturating_mul(MILLI_CPU)).saturating_add(SHARES_PER_CPU - 1) / SHARES_PER_CPU
}

/// The CPU time per `period` that a limit in millicores allows, in the unit of `period`. Zero (no
/// quota) if there is no limit.
pub fn quota(millis: i64, period: i64) -> i64 {
    if millis == 0 {
        return 0;
    }
    let quota = millis.saturating_mul(period) / MILLI_CPU;
    quota.max(MIN_QUOTA)
}

/// `cpu.weight` of cgroup v2 for `cpu.shares` of cgroup v1: `[2, 262144]` becomes `[1, 10000]`, as
/// in Kubernetes' proposal 2254 and its kubelet.
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// The weight of cgroup v1 for one of cgroup v2, by the inverse of [`weight`].
pub fn weight_to_shares(weight: i64) -> i64 {
    (weight.clamp(1, 10_000) - 1) * (MAX_SHARES - MIN_SHARES) / 9999 + MIN_SHARES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_shares_within_the_kernels_limits() {
        let shares_of = [0, 1, 2, 100, 1000, 256_000, 1_000_000, i64::MAX].map(shares);
        assert_eq!(shares_of, [2, 2, 2, 102, 1024, 262_144, 262_144, 262_144]);
    }

    #[test]
    fn limits_become_quotas() {
        let quotas = [0, 1, 10, 1500].map(|millis| quota(millis, 100_000));
        assert_eq!(quotas, [0, 1000, 1000, 150_000]);
        assert_eq!(quota(500, 20_000), 10_000);
        assert_eq!(quota(i64::MAX, 100_000), i64::MAX / 1000);
    }

    #[test]
    fn weights_are_upstreams() {
        let weights = [0, 2, 102, 512, 1024, 2048, 262_144, i64::MAX].map(weight);
        assert_eq!(weights, [1, 1, 4, 20, 39, 79, 10_000, 10_000]);
    }

    #[test]
    fn weights_become_shares_that_have_them() {
        for weight_of in [1, 2, 39, 100, 9_999, 10_000] {
            let shares = weight_to_shares(weight_of);
            assert!(
                (weight_of - 1..=weight_of).contains(&weight(shares)),
                "{weight_of}: {shares}"
            );
        }
        assert_eq!(
            (weight_to_shares(1), weight_to_shares(10_000)),
            (2, 262_144)
        );
    }

    #[test]
    fn shares_become_the_request_again() {
        for millis in [2, 100, 250, 1000, 4000] {
            assert_eq!(shares_to_millis(shares(millis)), millis);
        }
    }
}
