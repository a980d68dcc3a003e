//! How often the kubelet does what it repeats: delays that double, jitter, and rate limits.
//! Everything here reads tokio's clock, so that tests run on paused time.

pub mod backoff;
pub mod token_bucket;
