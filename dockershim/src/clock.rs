//! The wall clock, in CRI's unit.

/// The current Unix time in nanoseconds.
pub(crate) fn now() -> i64 {
    // Until the year 2262.
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
