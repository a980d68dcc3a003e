//! The attributes of a request for authorization: a verb and subresources of the node.

use axum::http::Method;

/// The API verb of a method; empty if it has none.
pub(crate) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The subresources of a path, in the order of their checks. Access to one of them is sufficient.
pub(crate) fn subresources(path: &str) -> &'static [&'static str] {
    let below = |base: &str| {
        path.strip_prefix(base)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if below("/stats") {
        &["stats"]
    } else if below("/metrics") {
        &["metrics"]
    } else if below("/logs") {
        &["log"]
    } else if below("/checkpoint") {
        &["checkpoint"]
    } else if below("/statusz") {
        &["statusz"]
    } else if below("/flagz") {
        &["configz"]
    } else if below("/spec") {
        &["spec", "proxy"]
    } else if below("/pods") || below("/runningpods") {
        &["pods", "proxy"]
    } else if below("/healthz") {
        &["healthz", "proxy"]
    } else if below("/configz") {
        &["configz", "proxy"]
    } else {
        &["proxy"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_subresources_of_the_node() {
        for (path, expected) in [
            ("/stats", &["stats"][..]),
            ("/stats/summary", &["stats"]),
            ("/statsx", &["proxy"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/syslog", &["log"]),
            ("/checkpoint/ns/pod/c", &["checkpoint"]),
            ("/pods", &["pods", "proxy"]),
            ("/pods/", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
            ("/", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
        assert_eq!(verb(&Method::POST), "create");
        assert_eq!(verb(&Method::HEAD), "");
    }
}
