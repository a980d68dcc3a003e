//! Who is known, and who may do what: as a test sets it.

use std::{collections::BTreeMap, sync::Arc};

use super::request::Caller;

/// What somebody wants to do, as an authorizer is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The verb.
    pub verb: String,
    /// The API group; empty for the core one and for paths.
    pub group: String,
    /// The resource; empty for paths.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The path, of what is no resource.
    pub path: String,
}

/// Decides whether a caller may do something.
pub type Rule = dyn Fn(&Caller, &Attributes) -> bool + Send + Sync;

/// Who is known by which token, and who may do what.
#[derive(Clone)]
pub struct Policy {
    tokens: BTreeMap<String, Caller>,
    anonymous: bool,
    /// None: nodes may do what upstream lets them, and all others everything.
    rule: Option<Arc<Rule>>,
}

impl Default for Policy {
    /// Nobody has a token, callers without credentials are refused, nodes may do what
    /// upstream's node authorizer and RBAC let them, and all others everything.
    fn default() -> Self {
        Self {
            tokens: BTreeMap::new(),
            anonymous: false,
            rule: None,
        }
    }
}

impl Policy {
    /// Makes a bearer token known as `caller`'s. Tokens of service accounts are known
    /// without it.
    pub fn add_token(&mut self, token: &str, caller: Caller) {
        self.tokens.insert(token.to_owned(), caller);
    }

    /// Forgets a bearer token.
    pub fn remove_token(&mut self, token: &str) {
        self.tokens.remove(token);
    }

    /// Whether requests without credentials are of `system:anonymous`.
    pub fn allow_anonymous(&mut self, allow: bool) {
        self.anonymous = allow;
    }

    /// Sets who may do what, for the server itself and for reviews of access.
    /// `system:masters` may do everything whatever the rule says.
    pub fn set_rule(
        &mut self,
        rule: impl Fn(&Caller, &Attributes) -> bool + Send + Sync + 'static,
    ) {
        self.rule = Some(Arc::new(rule));
    }

    /// Whose token this is.
    pub(super) fn caller_of(&self, token: &str) -> Option<Caller> {
        self.tokens.get(token).cloned()
    }

    /// Whether callers without credentials are let in.
    pub(super) fn is_anonymous_allowed(&self) -> bool {
        self.anonymous
    }

    /// Whether nodes are asked about as upstream does.
    pub(super) fn authorizes_nodes(&self) -> bool {
        self.rule.is_none()
    }

    /// Whether the caller may do it.
    pub(super) fn allows(&self, caller: &Caller, attributes: &Attributes) -> bool {
        caller.groups.iter().any(|group| group == "system:masters")
            || self
                .rule
                .as_ref()
                .is_none_or(|rule| rule(caller, attributes))
    }
}
