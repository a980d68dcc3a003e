//! The kubelet's API on its secure port: TLS, authentication and authorization, and handlers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod bounds;
mod client;
mod handlers;
mod node;
mod streams;
mod tls;
