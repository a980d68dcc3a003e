//! Authentication and authorization.

use std::sync::atomic::Ordering;

use crate::{
    client::{Authority, read_head},
    node::Node,
};

/// Every route: method, path, and subresources, one of which must be allowed.
const ROUTES: &[(&str, &str, &[&str])] = &[
    ("GET", "/healthz", &["healthz", "proxy"]),
    ("GET", "/healthz/ping", &["healthz", "proxy"]),
    ("GET", "/healthz/log", &["healthz", "proxy"]),
    ("GET", "/healthz/syncloop", &["healthz", "proxy"]),
    ("GET", "/pods", &["pods", "proxy"]),
    ("GET", "/pods/", &["pods", "proxy"]),
    ("GET", "/runningpods", &["pods", "proxy"]),
    ("GET", "/runningpods/", &["pods", "proxy"]),
    ("GET", "/configz", &["configz", "proxy"]),
    ("GET", "/metrics", &["metrics"]),
    ("GET", "/metrics/cadvisor", &["metrics"]),
    ("GET", "/metrics/probes", &["metrics"]),
    ("GET", "/metrics/resource", &["metrics"]),
    ("GET", "/stats/summary", &["stats"]),
    ("GET", "/spec/", &["spec", "proxy"]),
    ("GET", "/logs/", &["log"]),
    ("GET", "/logs/nothing-of-this-name", &["log"]),
    ("GET", "/containerLogs/default/web/app", &["proxy"]),
    ("POST", "/run/default/web/app", &["proxy"]),
    ("POST", "/run/default/web/uid-1/app", &["proxy"]),
    ("GET", "/exec/default/web/app", &["proxy"]),
    ("POST", "/exec/default/web/app", &["proxy"]),
    ("POST", "/exec/default/web/uid-1/app", &["proxy"]),
    ("GET", "/attach/default/web/app", &["proxy"]),
    ("POST", "/attach/default/web/app", &["proxy"]),
    ("POST", "/attach/default/web/uid-1/app", &["proxy"]),
    ("GET", "/portForward/default/web", &["proxy"]),
    ("POST", "/portForward/default/web", &["proxy"]),
    ("POST", "/portForward/default/web/uid-1", &["proxy"]),
    ("GET", "/cri/exec/token", &["proxy"]),
    ("POST", "/cri/exec/token", &["proxy"]),
    ("POST", "/checkpoint/default/web/app", &["checkpoint"]),
    ("GET", "/debug/pprof/cmdline", &["proxy"]),
    ("GET", "/debug/pprof/profile", &["proxy"]),
    ("PUT", "/debug/flags/v", &["proxy"]),
    ("GET", "/", &["proxy"]),
    ("GET", "/nothing-of-this-name", &["proxy"]),
    ("DELETE", "/pods", &["pods", "proxy"]),
];

fn api_verb(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "DELETE" => "delete",
        other => panic!("{other} has no verb"),
    }
}

#[tokio::test]
async fn every_route_knows_every_kind_of_caller() {
    let node = Node::in_cluster().await;
    node.known
        .tokens
        .lock()
        .insert("of-nobody-much".to_owned(), "guest".to_owned());
    let admin = node.admin();
    let impostor = Authority::new("clients").client("admin", "admins");
    let strangers = [
        ("nobody", node.stranger.clone()),
        ("an unknown token", node.stranger.with_token("unknown")),
        ("another authority", node.stranger.with_identity(impostor)),
    ];
    let guest = node.stranger.with_token("of-nobody-much");
    for (method, path, subresources) in ROUTES {
        for (who, caller) in &strangers {
            let answer = caller.request(method, path, "").await;
            let got = (answer.status, answer.body.as_str());
            assert_eq!(got, (401, "Unauthorized"), "{method} {path} by {who}");
        }
        let answer = guest.request(method, path, "").await;
        let verb = api_verb(method);
        let expected = format!(
            "Forbidden (user=guest, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            subresources.join(" ")
        );
        assert_eq!(
            (answer.status, answer.body),
            (403, expected),
            "{method} {path}"
        );
        let answer = admin.request(method, path, "").await;
        assert!(
            ![0, 401, 403].contains(&answer.status),
            "{method} {path} by an administrator: {answer:?}"
        );
    }
}

#[tokio::test]
async fn one_subresource_that_is_allowed_is_enough() {
    for (method, path, subresources) in ROUTES {
        for subresource in *subresources {
            let node = Node::in_cluster().await;
            node.known
                .tokens
                .lock()
                .insert("secret".to_owned(), "user".to_owned());
            node.known.allow("user", api_verb(method), subresource);
            let caller = node.stranger.with_token("secret");
            let answer = caller.request(method, path, "").await;
            assert!(
                ![0, 401, 403].contains(&answer.status),
                "{method} {path} with {subresource}: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_api_server_is_asked_once_and_told_who_it_is() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    for _ in 0..3 {
        assert_eq!(admin.get("/configz").await.status, 200);
    }
    let asked = node.known.asked.lock().clone();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].user.as_deref(), Some("admin"));
    assert_eq!(
        asked[0].groups.as_deref().unwrap(),
        ["admins", "system:authenticated"]
    );
    let attributes = asked[0].resource_attributes.clone().unwrap();
    let of = |value: &Option<String>| value.clone().unwrap_or_default();
    assert_eq!(
        [
            of(&attributes.resource),
            of(&attributes.subresource),
            of(&attributes.name),
            of(&attributes.verb)
        ],
        ["nodes", "configz", "node-1", "get"]
    );

    let secret = ("secret".to_owned(), "admin".to_owned());
    node.known.tokens.lock().extend([secret]);
    let token = node.stranger.with_token("secret");
    for _ in 0..3 {
        assert_eq!(token.get("/pods").await.status, 200);
    }
    assert_eq!(node.known.token_reviews.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn without_an_answer_nobody_is_let_in() {
    let node = Node::in_cluster().await;
    node.known.away.store(true, Ordering::SeqCst);
    let token = node.stranger.with_token("secret");
    assert_eq!(token.get("/pods").await.status, 401);
    let answer = node.admin().get("/pods").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (
            500,
            "Authorization error (user=admin, verb=get, resource=nodes, subresource=pods)"
        )
    );
    node.known.away.store(false, Ordering::SeqCst);
    assert_eq!(
        node.admin().get("/pods").await.status,
        200,
        "errors are not remembered"
    );
}

#[tokio::test]
async fn anonymous_callers_are_let_in_as_such_when_they_may_be() {
    let node = Node::with(|options| options.access.authentication.anonymous = true).await;
    node.known.allow("system:anonymous", "get", "healthz");
    assert_eq!(node.stranger.get("/healthz").await.status, 200);
    assert_eq!(node.stranger.get("/pods").await.status, 403);
    let token = node.stranger.with_token("unknown");
    assert_eq!(
        token.get("/healthz").await.status,
        401,
        "false credentials do not make an anonymous caller"
    );
}

#[tokio::test]
async fn a_node_without_an_api_server_lets_its_own_clients_in() {
    let node = Node::with(|options| {
        options.access.authentication.webhook = false;
        options.access.authorization = Default::default();
    })
    .await;
    let client = node.authority.client("anybody", "");
    assert_eq!(
        node.stranger
            .with_identity(client)
            .get("/pods")
            .await
            .status,
        200
    );
    assert_eq!(node.stranger.get("/pods").await.status, 401);
    assert!(node.known.asked.lock().is_empty());
}

#[tokio::test]
async fn a_token_may_be_a_subprotocol_of_a_websocket() {
    let node = Node::in_cluster().await;
    node.known
        .tokens
        .lock()
        .insert("secret".to_owned(), "user".to_owned());
    node.known.allow("user", "get", "healthz");
    for (encoded, status) in [("c2VjcmV0", "200"), ("b3RoZXI", "401")] {
        let protocols = format!(
            "Sec-WebSocket-Protocol: v4.channel.k8s.io, \
             base64url.bearer.authorization.k8s.io.{encoded}"
        );
        let headers = ["Connection: Upgrade", "Upgrade: websocket", &protocols];
        let sent = node.stranger.send("GET", "/healthz", &headers, "").await;
        let head = read_head(&mut sent.unwrap()).await;
        assert!(head.contains(status), "{encoded}: {head}");
    }
}

#[tokio::test]
async fn a_stranger_has_one_attempt_on_a_connection() {
    let node = Node::in_cluster().await;
    let sent = node.stranger.send("GET", "/healthz", &[], "").await;
    let head = read_head(&mut sent.unwrap()).await.to_lowercase();
    assert!(
        head.contains("401") && head.contains("connection: close"),
        "{head}"
    );
    let sent = node.admin().send("GET", "/healthz", &[], "").await;
    let head = read_head(&mut sent.unwrap()).await.to_lowercase();
    assert!(
        head.contains("200") && !head.contains("connection: close"),
        "{head}"
    );
}
