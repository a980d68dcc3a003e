use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequestSpec, TokenRequestStatus},
    core::v1::{PodSpec, ServiceAccount},
};
use kubelet_api_client::objects::Answer;
use kubelet_metrics::{Collector as _, Exposition};
use serde_json::{Value, json};

use super::*;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// Returns any service account, with the annotation `role`, and tokens of the form
/// `account.pod.audience`. Counts the token requests.
#[derive(Debug, Default)]
struct Accounts {
    tokens: AtomicUsize,
}

impl Objects for Accounts {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Answer<'a, Arc<ServiceAccount>> {
        let account = json!({"metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-of-{name}"),
            "annotations": {"role": format!("role-of-{name}")}
        }});
        let account = serde_json::from_value(account).unwrap();
        Box::pin(std::future::ready(Ok(Arc::new(account))))
    }
    fn service_account_token<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        let bound = request.bound_object_ref.unwrap_or_default();
        let pod = bound.name.unwrap_or_default();
        let token = format!("{name}.{pod}.{}", request.audiences.unwrap().join(","));
        let status = json!({"token": token, "expirationTimestamp": "2130-01-01T00:00:00Z"});
        let status = serde_json::from_value(status).unwrap();
        Box::pin(std::future::ready(Ok(status)))
    }
}

/// A plugin that runs a shell script with `$DIR` set to `dir`. The script is an argument of `sh`: a
/// new executable might still be open for writing in a child of another test.
fn provider(dir: &Path, script: &str, token: Option<TokenAttributes>) -> Provider {
    let program = dir.join("plugin");
    symlink("/bin/sh", &program).unwrap();
    let config = CredentialProvider {
        name: "plugin".to_owned(),
        program,
        match_images: vec!["*.example".to_owned()],
        default_cache_duration: Duration::from_secs(60),
        api_version: V1.to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: vec![("DIR".to_owned(), dir.display().to_string())],
        token_attributes: token,
    };
    Provider::new(config, Arc::new(PluginMetrics::new()))
}

/// A script that appends its requests to a file, one per line, and responds with `fields` and the
/// user `me`.
fn script(fields: &str, password: &str) -> String {
    format!(
        r#"cat >>"$DIR/requests"; echo >>"$DIR/requests"
        echo '{{"kind":"CredentialProviderResponse","apiVersion":"{V1}",{fields},
        "auth":{{"*.example":{{"username":"me","password":"{password}"}}}}}}'"#
    )
}

fn requests(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("requests")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn pod(name: &str, account: Option<&str>) -> Pod {
    let mut pod = Pod {
        spec: Some(PodSpec {
            service_account_name: account.map(str::to_owned),
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod.metadata.uid = Some(format!("uid-of-{name}"));
    pod
}

async fn users(provider: &Provider, image: &str, pod: &Pod) -> Vec<String> {
    let (config, _) = provider.provide(image, pod, &Accounts::default()).await;
    config.into_values().map(|c| c.username).collect()
}

#[tokio::test]
async fn answers_are_kept_for_what_they_are_good_for() {
    let plain = pod("web", None);
    for (scope, runs) in [("Image", 3), ("Registry", 2), ("Global", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let fields = format!(r#""cacheKeyType":"{scope}""#);
        let provider = provider(dir.path(), &script(&fields, "p"), None);
        for image in ["a.example/x", "a.example/x", "a.example/y", "b.example/x"] {
            assert_eq!(users(&provider, image, &plain).await, ["me"]);
        }
        // The image matches no pattern.
        assert!(users(&provider, "docker.io/x", &plain).await.is_empty());
        let asked = requests(dir.path());
        assert_eq!(asked.len(), runs, "{scope}");
        assert_eq!(
            asked[0],
            json!({"kind": "CredentialProviderRequest", "apiVersion": V1, "image": "a.example/x"})
        );
    }
}

#[tokio::test]
async fn answers_expire() {
    let plain = pod("web", None);
    for (duration, runs) in [("0s", 2), ("1h", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let fields = format!(r#""cacheKeyType":"Global","cacheDuration":"{duration}""#);
        let provider = provider(dir.path(), &script(&fields, "p"), None);
        for _ in 0..2 {
            assert_eq!(users(&provider, "a.example/x", &plain).await, ["me"]);
        }
        assert_eq!(requests(dir.path()).len(), runs, "{duration}");
    }
    let dir = tempfile::tempdir().unwrap();
    let fields = r#""cacheKeyType":"Global""#;
    let provider = provider(dir.path(), &script(fields, "p"), None);
    users(&provider, "a.example/x", &plain).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    users(&provider, "a.example/x", &plain).await;
    assert_eq!(requests(dir.path()).len(), 2);
}

#[tokio::test]
async fn those_who_ask_together_share_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let script = script(r#""cacheKeyType":"Image","cacheDuration":"0s""#, "p");
    // The plugin responds once the file exists.
    let script = format!(r#"until [ -e "$DIR/go" ]; do sleep 0.01; done; {script}"#);
    let provider = provider(dir.path(), &script, None);
    let plain = pod("web", None);
    let go = async {
        tokio::task::yield_now().await;
        fs::write(dir.path().join("go"), "").unwrap();
    };
    let (a, b, ()) = tokio::join!(
        biased;
        users(&provider, "a.example/x", &plain),
        users(&provider, "a.example/x", &plain),
        go
    );
    assert_eq!((a.len(), b.len()), (1, 1));
    assert_eq!(requests(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_plugin_that_fails_gives_nothing_and_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let script = script(r#""cacheKeyType":"Global""#, "p");
    let script = format!(r#"[ -e "$DIR/good" ] || exit 1; {script}"#);
    let provider = provider(dir.path(), &script, None);
    let plain = pod("web", None);
    assert!(users(&provider, "a.example/x", &plain).await.is_empty());
    let error = provider.ask("a.example/x", None).await.unwrap_err();
    assert!(error.to_string().contains("exit status: 1"), "{error}");
    fs::write(dir.path().join("good"), "").unwrap();
    assert_eq!(users(&provider, "a.example/x", &plain).await, ["me"]);
    let mut page = Exposition::default();
    provider.metrics.collect(&mut page);
    let page = page.into_text();
    for line in [
        "kubelet_credential_provider_plugin_errors_total{plugin_name=\"plugin\"} 2\n",
        "kubelet_credential_provider_plugin_duration_count{plugin_name=\"plugin\"} 3\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[tokio::test]
async fn a_response_without_an_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let provider = provider(dir.path(), "head -c 2000000 /dev/zero; sleep 1000", None);
    let error = provider.ask("a.example/x", None).await.unwrap_err();
    let expected = "is longer than 1048576 bytes";
    assert!(error.to_string().ends_with(expected), "{error}");
}

fn attributes(cache_type: TokenCacheType, require: bool) -> TokenAttributes {
    TokenAttributes {
        audience: "registry".to_owned(),
        cache_type,
        require_service_account: require,
        required_annotations: Vec::new(),
        optional_annotations: vec!["role".to_owned(), "other".to_owned()],
    }
}

#[tokio::test]
async fn service_accounts_get_their_own_answers() {
    let pods = [
        pod("a", Some("one")),
        pod("b", Some("one")),
        pod("c", Some("two")),
    ];
    for (cache_type, runs) in [
        (TokenCacheType::ServiceAccount, 2),
        (TokenCacheType::Token, 3),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let script = script(r#""cacheKeyType":"Global""#, "p");
        let provider = provider(dir.path(), &script, Some(attributes(cache_type, true)));
        let accounts = Accounts::default();
        for pod in pods.iter().chain(&pods) {
            let (config, source) = provider.provide("a.example/x", pod, &accounts).await;
            assert_eq!(config.len(), 1);
            assert!(matches!(source, CredentialSource::ServiceAccount(_)));
        }
        // Each pod's token is cached while it is fresh.
        assert_eq!(accounts.tokens.load(Ordering::Relaxed), pods.len());
        let asked = requests(dir.path());
        assert_eq!(asked.len(), runs);
        assert_eq!(asked[0]["serviceAccountToken"], "one.a.registry");
        assert_eq!(
            asked[0]["serviceAccountAnnotations"],
            json!({"role": "role-of-one"})
        );
        // The plugin is not run for pods without a service account.
        assert!(
            users(&provider, "a.example/x", &pod("d", None))
                .await
                .is_empty()
        );
        assert_eq!(requests(dir.path()).len(), runs);
    }
}

#[tokio::test]
async fn pods_without_what_a_plugin_needs_get_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut needs = attributes(TokenCacheType::ServiceAccount, false);
    let script = script(r#""cacheKeyType":"Global""#, "one.a.registry");
    let optional = provider(dir.path(), &script, Some(needs.clone()));
    // A plugin that does not require a service account serves pods without one.
    assert_eq!(
        users(&optional, "a.example/x", &pod("a", None)).await,
        ["me"]
    );
    // The token must not be cached as the password of all pods with this account.
    let account = pod("a", Some("one"));
    assert!(users(&optional, "a.example/x", &account).await.is_empty());

    let dir = tempfile::tempdir().unwrap();
    needs.required_annotations = vec!["absent".to_owned()];
    let strict = provider(dir.path(), &script, Some(needs));
    assert!(users(&strict, "a.example/x", &account).await.is_empty());
    assert!(requests(dir.path()).is_empty());
}
