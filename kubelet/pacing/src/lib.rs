//! Pacing: exponential back-off, jitter and rate limits. All of it reads tokio's clock, so that
//! tests run on paused time.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod token_bucket;
