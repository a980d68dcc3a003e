//! The pulls in progress.

use std::collections::HashMap;

use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tonic::Code;

use super::Reference;

/// The pulls in progress. Requests for the same image with the same credentials share one pull.
#[derive(Debug, Default)]
pub struct Pulls(pub(crate) Mutex<HashMap<PullKey, Pull>>);

pub(crate) type PullKey = (Reference, AuthKey);
pub(crate) type AuthKey = Option<[String; 6]>;
pub(crate) type Pull = Shared<BoxFuture<'static, Result<String, PullFailure>>>;

/// A failure that can be reported to several requests.
#[derive(Debug, Clone)]
pub(crate) struct PullFailure {
    pub(crate) cause: PullCause,
    pub(crate) message: String,
}

/// What made a pull fail, with the gRPC code for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PullCause {
    /// The registry's answer, or that there was none.
    Registry(Code),
    /// The engine or the shim.
    Node(Code),
}
