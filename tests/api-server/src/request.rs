//! The parts of a request: its path, its query and its caller.

use std::{collections::BTreeMap, time::Duration};

use hyper::{Method, Uri};
use tokio::time::Instant;

use super::{
    errors::ApiError,
    resources::{self, Resource},
};

/// The caller of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The user's UID, for service accounts.
    pub uid: String,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// An authenticated user with these groups and `system:authenticated`.
    pub fn new(user: &str, groups: &[&str]) -> Self {
        let groups = groups
            .iter()
            .copied()
            .chain(["system:authenticated"])
            .map(str::to_owned)
            .collect();
        Self {
            user: user.to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// The cluster's administrator.
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", &["system:masters"])
    }

    /// A node's kubelet.
    pub fn node(name: &str) -> Self {
        Self::new(&format!("system:node:{name}"), &["system:nodes"])
    }

    /// The unauthenticated caller.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }
}

/// A request, as it is recorded and passed to interceptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; the
    /// method in lower case for paths that are not those of resources.
    pub verb: &'static str,
    /// The API group.
    pub group: String,
    /// The resource with its subresource: `pods`, `pods/status`. Empty for other paths.
    pub resource: String,
    /// The namespace; empty if there is none.
    pub namespace: String,
    /// The name; empty for collections.
    pub name: String,
    /// The path.
    pub path: String,
    /// The query.
    pub query: String,
    /// The user.
    pub user: String,
    /// When the request arrived, on tokio's clock.
    pub at: Instant,
}

/// The object or collection of a path.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The resource.
    pub resource: &'static Resource,
    /// The namespace; `None` for cluster-scoped objects and lists of all namespaces.
    pub namespace: Option<String>,
    /// The name; `None` for a collection.
    pub name: Option<String>,
    /// The subresource, or empty.
    pub subresource: String,
}

impl Target {
    /// Parses a path. Returns `None` if it is not the path of a resource.
    pub(super) fn parse(path: &str) -> Option<Result<Self, ApiError>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, parts) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return None,
        };
        Some(Self::of(group, version, parts).ok_or_else(ApiError::no_such_path))
    }

    fn of(group: &str, version: &str, parts: &[&str]) -> Option<Self> {
        let in_namespace = match parts {
            ["namespaces", namespace, plural, rest @ ..] => resources::find(group, version, plural)
                .filter(|resource| resource.namespaced)
                .map(|resource| (resource, Some((*namespace).to_owned()), rest)),
            _ => None,
        };
        let (resource, namespace, rest) = match in_namespace {
            Some(found) => found,
            None => {
                let (plural, rest) = parts.split_first()?;
                (resources::find(group, version, plural)?, None, rest)
            }
        };
        let (name, rest) = match rest.split_first() {
            Some((name, rest)) => (Some(unescape(name)), rest),
            None => (None, rest),
        };
        let (subresource, rest) = match rest.split_first() {
            Some((subresource, rest)) => ((*subresource).to_owned(), rest),
            None => (String::new(), rest),
        };
        // The path below a proxy belongs to the kubelet.
        let whole = rest.is_empty() || subresource == "proxy";
        let known = subresource.is_empty() || resource.has(&subresource);
        // An object of a namespaced resource must have a namespace.
        let placed = !resource.namespaced || namespace.is_some() || name.is_none();
        (known && placed && whole).then_some(Self {
            resource,
            namespace,
            name,
            subresource,
        })
    }

    /// The resource with its subresource, as requests are counted.
    pub(super) fn counted(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.plural.to_owned()
        } else {
            format!("{}/{}", self.resource.plural, self.subresource)
        }
    }

    /// The name; an error if there is none.
    pub(super) fn required_name(&self) -> Result<&str, ApiError> {
        self.name
            .as_deref()
            .ok_or_else(ApiError::method_not_allowed)
    }

    /// The namespace; empty if there is none.
    pub(super) fn namespace_text(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn is_watchable(&self) -> bool {
        self.subresource.is_empty()
    }

    /// The API verb of a method on this target.
    pub(super) fn verb(&self, method: &Method, query: &Query) -> &'static str {
        let one = self.name.is_some();
        match *method {
            Method::GET | Method::HEAD if query.truth("watch") && self.is_watchable() => "watch",
            Method::GET | Method::HEAD if one => "get",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if one => "delete",
            Method::DELETE => "deletecollection",
            _ => "",
        }
    }
}

/// The parameters of a query string.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of a URI.
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        Self(
            pairs
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (unescape(key), unescape(value))
                })
                .collect(),
        )
    }

    /// A parameter; empty if it is missing.
    pub(super) fn text(&self, key: &str) -> &str {
        let found = self.0.iter().find(|(had, _)| had == key);
        found.map_or("", |(_, value)| value)
    }

    /// All values of a parameter that may be repeated.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        let found = self.0.iter().filter(move |(had, _)| had == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a boolean option of a subresource is set: present, and neither `0` nor `false`.
    pub(super) fn flag(&self, key: &str) -> bool {
        let no = |value: &str| value == "0" || value.eq_ignore_ascii_case("false");
        self.all(key).next().is_some_and(|value| !no(value))
    }

    /// Whether a boolean parameter is true.
    pub(super) fn truth(&self, key: &str) -> bool {
        matches!(self.text(key), "1" | "true" | "True" | "t" | "T")
    }

    /// A numeric parameter.
    pub(super) fn number(&self, key: &str) -> Option<i64> {
        self.text(key).parse().ok()
    }

    /// A parameter in seconds.
    pub(super) fn seconds(&self, key: &str) -> Option<Duration> {
        let seconds = self.number(key)?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    /// Whether the request is a dry run.
    pub(super) fn dry_run(&self) -> bool {
        self.text("dryRun") == "All"
    }
}

/// Decodes percent-encoding and `+`.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        let hex = tail.get(..2).and_then(|hex| str::from_utf8(hex).ok());
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> (String, String, String, String) {
        let target = Target::parse(path).unwrap().unwrap();
        (
            target.resource.qualified(),
            target.namespace_text().to_owned(),
            target.name.clone().unwrap_or_default(),
            target.subresource,
        )
    }

    #[test]
    fn paths_name_objects() {
        for (path, expected) in [
            ("/api/v1/pods", ["pods", "", "", ""]),
            ("/api/v1/namespaces", ["namespaces", "", "", ""]),
            ("/api/v1/namespaces/a", ["namespaces", "", "a", ""]),
            (
                "/api/v1/namespaces/a/finalize",
                ["namespaces", "", "a", "finalize"],
            ),
            (
                "/api/v1/namespaces/a/pods/b/status",
                ["pods", "a", "b", "status"],
            ),
            (
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
                ["leases.coordination.k8s.io", "kube-node-lease", "n", ""],
            ),
        ] {
            let expected = expected.map(str::to_owned).into();
            assert_eq!(parsed(path), expected, "{path}");
        }
        let proxied = parsed("/api/v1/nodes/n/proxy/logs/a/b");
        assert_eq!((proxied.2.as_str(), proxied.3.as_str()), ("n", "proxy"));
        assert!(Target::parse("/version").is_none());
        assert!(Target::parse("/api/v1/unicorns").unwrap().is_err());
        assert!(Target::parse("/api/v1/pods/x").unwrap().is_err());
    }

    #[test]
    fn queries_are_unescaped() {
        let uri: Uri = "/x?fieldSelector=spec.nodeName%3Dn1&watch=true&timeoutSeconds=5&a+b=c"
            .parse()
            .unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.text("fieldSelector"), "spec.nodeName=n1");
        assert!(query.truth("watch"));
        assert_eq!(
            query.seconds("timeoutSeconds"),
            Some(Duration::from_secs(5))
        );
        assert_eq!(query.text("a b"), "c");
    }
}
