//! Authentication and authorization, as a test configures them.

use std::{collections::BTreeMap, sync::Arc};

use super::request::Caller;

/// The attributes of a request that an authorizer decides about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The verb.
    pub verb: String,
    /// The API group; empty for the core group and for paths.
    pub group: String,
    /// The resource; empty for paths.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The path of a request that is not for a resource.
    pub path: String,
}

/// A function that decides whether a caller may perform a request.
pub(super) type Rule = dyn Fn(&Caller, &Attributes) -> bool + Send + Sync;

/// The known bearer tokens, and the permissions of callers.
#[derive(Clone)]
pub struct Policy {
    tokens: BTreeMap<String, Caller>,
    anonymous: bool,
    /// `None`: nodes have upstream's permissions, and all other callers may do everything.
    rule: Option<Arc<Rule>>,
}

impl Default for Policy {
    /// No bearer tokens, no anonymous requests, nodes have the permissions of upstream's node
    /// authorizer and RBAC, and all other callers may do everything.
    fn default() -> Self {
        Self {
            tokens: BTreeMap::new(),
            anonymous: false,
            rule: None,
        }
    }
}

impl Policy {
    /// Adds a bearer token for `caller`. Tokens of service accounts need not be added.
    pub fn add_token(&mut self, token: &str, caller: Caller) {
        self.tokens.insert(token.to_owned(), caller);
    }

    /// Removes a bearer token.
    pub fn remove_token(&mut self, token: &str) {
        self.tokens.remove(token);
    }

    /// Sets whether requests without credentials are accepted as `system:anonymous`.
    pub fn allow_anonymous(&mut self, allow: bool) {
        self.anonymous = allow;
    }

    /// Sets the authorization rule, for the server's own requests and for access reviews.
    /// `system:masters` may do everything, whatever the rule says.
    pub fn set_rule(
        &mut self,
        rule: impl Fn(&Caller, &Attributes) -> bool + Send + Sync + 'static,
    ) {
        self.rule = Some(Arc::new(rule));
    }

    /// The caller with this bearer token.
    pub(super) fn caller_of(&self, token: &str) -> Option<Caller> {
        self.tokens.get(token).cloned()
    }

    /// Whether requests without credentials are accepted.
    pub(super) fn is_anonymous_allowed(&self) -> bool {
        self.anonymous
    }

    /// Whether nodes are subject to upstream's node authorizer.
    pub(super) fn authorizes_nodes(&self) -> bool {
        self.rule.is_none()
    }

    /// Whether the caller may perform the request.
    pub(super) fn allows(&self, caller: &Caller, attributes: &Attributes) -> bool {
        caller.groups.iter().any(|group| group == "system:masters")
            || self
                .rule
                .as_ref()
                .is_none_or(|rule| rule(caller, attributes))
    }
}
