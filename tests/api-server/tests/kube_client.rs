//! The test double of an API server, used with kube's client: in this process, and over TLS.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, Client, Config, Error, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use test_api_server::{ApiError, ApiServer, Caller, Verdict};

fn kind(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn pods(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &kind("", "v1", "Pod"))
}

fn pod(name: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox:1"}]},
    }))
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, String) {
    match result.unwrap_err() {
        Error::Api(status) => (status.code, status.reason.clone()),
        other => panic!("no status: {other}"),
    }
}

async fn next(
    events: &mut (impl futures::Stream<Item = Result<WatchEvent<DynamicObject>, Error>> + Unpin),
) -> (&'static str, String) {
    match events.next().await.unwrap().unwrap() {
        WatchEvent::Added(object) => ("added", object.name_any()),
        WatchEvent::Modified(object) => ("modified", object.name_any()),
        WatchEvent::Deleted(object) => ("deleted", object.name_any()),
        WatchEvent::Bookmark(bookmark) => ("bookmark", bookmark.metadata.resource_version),
        WatchEvent::Error(status) => ("error", status.reason.clone()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_created_whole_and_changes_only_where_it_may() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let made = pods
        .create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some());
    assert_eq!(
        made.data["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort"})
    );
    assert_eq!(made.data["spec"]["restartPolicy"], "Always");
    assert_eq!(made.data["spec"]["serviceAccountName"], "default");

    let again = pods.create(&PostParams::default(), &pod("web")).await;
    assert_eq!(refused(again), (409, "AlreadyExists".to_owned()));
    assert_eq!(
        refused(pods.get("none").await),
        (404, "NotFound".to_owned())
    );

    let image = json!({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}});
    let patched = pods
        .patch("web", &PatchParams::default(), &Patch::Strategic(image))
        .await
        .unwrap();
    assert_eq!(patched.data["spec"]["containers"][0]["image"], "busybox:2");
    assert_eq!(patched.metadata.generation, Some(2));
    let stale = pods.replace("web", &PostParams::default(), &made).await;
    assert_eq!(refused(stale), (409, "Conflict".to_owned()));
    let moved = json!({"spec": {"nodeName": "n2"}});
    let moved = pods
        .patch("web", &PatchParams::default(), &Patch::Merge(moved))
        .await;
    assert_eq!(refused(moved), (422, "Invalid".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_status_patch_changes_the_status_alone() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let made = pods
        .create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    let patch = json!({
        "metadata": {"uid": made.uid()}, "spec": {"nodeName": "elsewhere"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let params = PatchParams::default();
    let patched = pods
        .patch_status("web", &params, &Patch::Strategic(&patch))
        .await
        .unwrap();
    assert_eq!(patched.data["status"]["phase"], "Running");
    assert_eq!(patched.data["status"]["qosClass"], "BestEffort");
    assert_eq!(patched.data["spec"]["nodeName"], "n1");
    let revision = server.revision();
    pods.patch_status("web", &params, &Patch::Strategic(&patch))
        .await
        .unwrap();
    assert_eq!(
        server.revision(),
        revision,
        "what changes nothing is not written"
    );
    let other = json!({"metadata": {"uid": "other"}, "status": {"phase": "Failed"}});
    let other = pods
        .patch_status("web", &params, &Patch::Strategic(other))
        .await;
    assert_eq!(refused(other), (422, "Invalid".to_owned()));
    assert_eq!(server.count("patch", "pods/status"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_is_deleted_with_grace() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let made = pods
        .create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    pods.delete("web", &DeleteParams::default()).await.unwrap();
    let ending = pods.get("web").await.unwrap();
    assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(30));
    assert!(ending.metadata.deletion_timestamp.is_some());
    pods.delete("web", &DeleteParams::default().grace_period(60))
        .await
        .unwrap();
    let same = pods.get("web").await.unwrap();
    assert_eq!(same.resource_version(), ending.resource_version());

    let wrong = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some("other".to_owned()),
            ..Default::default()
        }),
        ..DeleteParams::default().grace_period(0)
    };
    assert_eq!(refused(pods.delete("web", &wrong).await).0, 409);
    let right = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: made.uid(),
            ..Default::default()
        }),
        ..DeleteParams::default().grace_period(0)
    };
    pods.delete("web", &right).await.unwrap();
    assert_eq!(refused(pods.get("web").await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_keeps_an_object_until_it_is_gone() {
    let server = ApiServer::start().unwrap();
    let client = server.client(Caller::admin());
    let maps: Api<DynamicObject> =
        Api::namespaced_with(client, "default", &kind("", "v1", "ConfigMap"));
    let held = object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": ["a/b"]},
    }));
    maps.create(&PostParams::default(), &held).await.unwrap();
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    assert!(
        maps.get("c")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    let free = json!({"metadata": {"finalizers": null}});
    maps.patch("c", &PatchParams::default(), &Patch::Merge(free))
        .await
        .unwrap();
    assert_eq!(refused(maps.get("c").await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn lists_are_selected_and_come_in_parts() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    for name in ["a", "b", "c"] {
        pods.create(&PostParams::default(), &pod(name))
            .await
            .unwrap();
    }
    let names = |list: kube::core::ObjectList<DynamicObject>| -> Vec<String> {
        list.items.iter().map(|one| one.name_any()).collect()
    };
    let of_node = ListParams::default()
        .fields("spec.nodeName=n1")
        .labels("app in (a,c)");
    assert_eq!(names(pods.list(&of_node).await.unwrap()), ["a", "c"]);
    let first = pods.list(&ListParams::default().limit(2)).await.unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(1));
    assert_eq!(names(first), ["a", "b"]);
    let rest = ListParams::default().limit(2).continue_token(&token);
    assert_eq!(names(pods.list(&rest).await.unwrap()), ["c"]);
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    server.compact();
    assert_eq!(refused(pods.list(&rest).await), (410, "Expired".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_where_it_was_and_expires_when_that_is_forgotten() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let revision = server.revision().to_string();
    let params = WatchParams::default().fields("spec.nodeName=n1");
    pods.create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    let mut events = pods.watch(&params, &revision).await.unwrap().boxed();
    assert_eq!(next(&mut events).await, ("added", "web".to_owned()));
    let running = json!({"status": {"phase": "Running"}});
    pods.patch_status("web", &PatchParams::default(), &Patch::Merge(running))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await, ("modified", "web".to_owned()));
    pods.delete("web", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await, ("deleted", "web".to_owned()));
    let newest = server.revision().to_string();
    assert_eq!(next(&mut events).await, ("bookmark", newest));
    server.end_watches();
    assert!(events.next().await.is_none());

    server.compact();
    let mut late = pods.watch(&params, &revision).await.unwrap().boxed();
    assert_eq!(next(&mut late).await, ("error", "Expired".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_begin_with_what_there_is() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    pods.create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    let params = WatchParams::default().initial_events().timeout(5);
    let events = pods.watch(&params, "0").await.unwrap();
    let events: Vec<_> = events.try_collect().await.unwrap();
    assert!(matches!(&events[0], WatchEvent::Added(pod) if pod.name_any() == "web"));
    let end = match &events[1] {
        WatchEvent::Bookmark(bookmark) => &bookmark.metadata.annotations,
        other => panic!("{other:?}"),
    };
    assert_eq!(end["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_test_can_take_the_server_away_and_refuse_requests() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let mut events = pods
        .watch(&WatchParams::default(), &server.revision().to_string())
        .await
        .unwrap()
        .boxed();
    server.set_available(false);
    assert!(events.next().await.unwrap().is_err());
    assert!(pods.get("web").await.is_err());
    server.set_available(true);
    server.intercept(Some(Arc::new(|record| {
        if record.resource == "pods" && record.verb == "get" {
            Verdict::Refuse(ApiError::too_many_requests("slow down"))
        } else {
            Verdict::Pass
        }
    })));
    assert_eq!(refused(pods.get("web").await).0, 429);
    pods.list(&ListParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_token_is_known_while_it_is_good() {
    let server = ApiServer::start().unwrap();
    let client = server.client(Caller::admin());
    let pod = pods(&client)
        .create(&PostParams::default(), &pod("web"))
        .await
        .unwrap();
    let accounts: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &kind("", "v1", "ServiceAccount"));
    let request = json!({"spec": {"audiences": ["a"], "expirationSeconds": 600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": pod.uid()}}});
    let made: Value = accounts
        .create_subresource("token", "default", &PostParams::default(), &request)
        .await
        .unwrap();
    let reviews: Api<DynamicObject> =
        Api::all_with(client, &kind("authentication.k8s.io", "v1", "TokenReview"));
    let review = object(json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {"name": ""},
        "spec": {"token": made["status"]["token"], "audiences": ["a"]},
    }));
    let known = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    assert_eq!(known.data["status"]["authenticated"], true);
    assert_eq!(
        known.data["status"]["user"]["username"],
        "system:serviceaccount:default:default"
    );
    tokio::time::sleep(Duration::from_secs(601)).await;
    let late = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    assert_ne!(late.data["status"]["authenticated"], true);
}

#[tokio::test(start_paused = true)]
async fn access_is_reviewed_by_the_rule_that_also_guards_the_server() {
    let server = ApiServer::start().unwrap();
    server.with_policy(|policy| {
        policy.set_rule(|caller, wanted| caller.user == "jane" && wanted.resource == "nodes");
    });
    let reviews: Api<DynamicObject> = Api::all_with(
        server.client(Caller::admin()),
        &kind("authorization.k8s.io", "v1", "SubjectAccessReview"),
    );
    for (user, allowed) in [("jane", true), ("joe", false)] {
        let review = object(json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "metadata": {"name": ""},
            "spec": {"user": user, "resourceAttributes": {
                "verb": "get", "resource": "nodes", "subresource": "stats", "name": "n1"}},
        }));
        let answered = reviews
            .create(&PostParams::default(), &review)
            .await
            .unwrap();
        assert_eq!(answered.data["status"]["allowed"], allowed, "{user}");
    }
    let jane = pods(&server.client(Caller::new("jane", &[])));
    assert_eq!(
        refused(jane.get("web").await),
        (403, "Forbidden".to_owned())
    );
}

#[tokio::test]
async fn callers_over_tls_are_known_by_certificate_and_by_token() {
    let server = ApiServer::start().unwrap();
    let listening = server.listen().await.unwrap();
    server.with_policy(|policy| policy.add_token("secret", Caller::new("jane", &[])));
    let identity = server.identity(&Caller::node("n1")).unwrap();
    let client = |kubeconfig: String| async move {
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    };
    for (kubeconfig, user) in [
        (listening.kubeconfig(&identity), "system:node:n1"),
        (listening.kubeconfig_with_token("secret"), "jane"),
    ] {
        let pods = pods(&client(kubeconfig).await);
        let of_node = ListParams::default().fields("spec.nodeName=n1");
        pods.list(&of_node).await.unwrap();
        assert_eq!(server.requests().last().unwrap().user, user);
    }
    let stranger = pods(&client(listening.kubeconfig_with_token("guessed")).await);
    let answer = stranger.list(&ListParams::default()).await;
    assert_eq!(refused(answer), (401, "Unauthorized".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_node_may_do_what_is_its_own_and_no_more() {
    let server = ApiServer::start().unwrap();
    let admin = pods(&server.client(Caller::admin()));
    for name in ["web", "other"] {
        let mut pod = pod(name);
        pod.data["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": name}}]);
        if name == "other" {
            pod.data["spec"]["nodeName"] = json!("n2");
        }
        admin.create(&PostParams::default(), &pod).await.unwrap();
        let secret = json!({"metadata": {"name": name}});
        server.create("v1", "secrets", "default", secret).unwrap();
    }
    let node = server.client(Caller::node("n1"));
    let forbidden = (403, "Forbidden".to_owned());
    let own = pods(&node);
    own.get("web").await.unwrap();
    assert_eq!(refused(own.get("other").await), forbidden);
    let all = own.list(&ListParams::default()).await;
    assert_eq!(refused(all), forbidden);
    let patch = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let params = PatchParams::default();
    own.patch_status("web", &params, &patch).await.unwrap();
    let other = own.patch_status("other", &params, &patch).await;
    assert_eq!(refused(other), forbidden);
    assert_eq!(refused(own.patch("web", &params, &patch).await), forbidden);
    // A node may create mirrors only of its own pods.
    let made = own.create(&PostParams::default(), &pod("new")).await;
    assert_eq!(refused(made), forbidden);
    let mut mirror = pod("mirror");
    let annotations = [("kubernetes.io/config.mirror".to_owned(), "hash".to_owned())];
    mirror.metadata.annotations = Some(annotations.into());
    own.create(&PostParams::default(), &mirror).await.unwrap();

    let secrets: Api<DynamicObject> =
        Api::namespaced_with(node, "default", &kind("", "v1", "Secret"));
    secrets.get("web").await.unwrap();
    assert_eq!(refused(secrets.get("other").await), forbidden);
    assert_eq!(
        refused(secrets.list(&ListParams::default()).await),
        forbidden
    );
    let one = ListParams::default().fields("metadata.name=web");
    assert_eq!(secrets.list(&one).await.unwrap().items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_cannot_be_is_refused() {
    let server = ApiServer::start().unwrap();
    let pods = pods(&server.client(Caller::admin()));
    let mut pod = pod("web");
    pod.data["spec"]["restartPolicy"] = json!("OnFailure");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let params = PatchParams::default();
    let ended = |code: i64| json!([{"name": "c", "state": {"terminated": {"exitCode": code}}}]);
    let running = json!([{"name": "c", "state": {"running": {}}}]);
    for (status, accepted) in [
        (json!({"containerStatuses": ended(1)}), true),
        (json!({"containerStatuses": running}), true),
        (json!({"containerStatuses": ended(0)}), true),
        (json!({"containerStatuses": running}), false),
        (json!({"qosClass": "Guaranteed"}), false),
        (
            json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
            true,
        ),
        (
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}),
            true,
        ),
        (json!({"podIPs": [{"ip": "fd00::1"}]}), false),
        (
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
            false,
        ),
        (json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "no"}]}), false),
    ] {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = pods.patch_status("web", &params, &patch).await;
        match patched {
            Ok(_) => assert!(accepted, "{status}"),
            Err(error) => {
                assert!(!accepted, "{status}: {error}");
                let refused = refused(Err::<(), _>(error));
                assert_eq!(refused, (422, "Invalid".to_owned()), "{status}");
            }
        }
    }
}
