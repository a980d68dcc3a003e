use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::*;

/// Credentials of a kubeconfig with this user.
fn credentials(
    dir: &TempDir,
    user: &str,
) -> Result<(Credentials, Arc<ClientIdentity>), (&'static str, String)> {
    let path = dir.path().join("kubelet.conf");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters:\n- name: c\n  cluster:\n    server: https://a:6443\n    \
         certificate-authority-data: Q0E=\n    proxy-url: http://p:3128\n    extensions:\n    \
         - name: client.authentication.k8s.io/exec\n      extension: {{audience: x}}\n\
         users:\n- name: u\n  user: {user}\n"
    );
    fs::write(&path, text).unwrap();
    let access = ClusterAccess::read(&path).unwrap();
    let identity = Arc::new(ClientIdentity::new(None));
    Ok((Credentials::new(&access, &identity)?, identity))
}

async fn headers(credentials: &Credentials) -> Result<HeaderMap, CredentialsError> {
    let mut headers = HeaderMap::new();
    credentials.add_to(&mut headers).await?;
    Ok(headers)
}

async fn authorization(credentials: &Credentials) -> String {
    let headers = headers(credentials).await.unwrap();
    let value = headers.get(AUTHORIZATION);
    value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

/// A user whose plugin runs a shell script.
fn exec(script: &str, more: &str) -> String {
    let script = serde_json::json!(script);
    format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
         command: /bin/sh, args: [-c, {script}]{more}}}}}"
    )
}

/// The output of a plugin with this status.
fn output(status: &serde_json::Value) -> String {
    serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    })
    .to_string()
}

#[tokio::test]
async fn fixed_credentials_are_headers() {
    let dir = tempfile::tempdir().unwrap();
    for (user, value) in [
        ("{}", ""),
        ("{token: t}", "Bearer t"),
        ("{username: me, password: secret}", "Basic bWU6c2VjcmV0"),
    ] {
        let (credentials, _) = credentials(&dir, user).unwrap();
        assert_eq!(authorization(&credentials).await, value);
        let headers = headers(&credentials).await.unwrap();
        assert!(
            headers[USER_AGENT]
                .to_str()
                .unwrap()
                .starts_with("kubelet/")
        );
    }
    let user = "{as: system:node, as-uid: '7', as-groups: [a, b], as-user-extra: {Scope/a%: [x]}}";
    let (credentials, _) = credentials(&dir, user).unwrap();
    let headers = headers(&credentials).await.unwrap();
    assert_eq!(headers["impersonate-user"], "system:node");
    assert_eq!(headers["impersonate-uid"], "7");
    let groups: Vec<_> = headers.get_all("impersonate-group").iter().collect();
    assert_eq!(groups, ["a", "b"]);
    assert_eq!(headers["impersonate-extra-scope%2fa%25"], "x");
}

#[test]
fn errors_name_the_field_of_the_user() {
    let dir = tempfile::tempdir().unwrap();
    for (user, field, message) in [
        ("{as-groups: [a]}", "as", "is required"),
        (
            "{username: a, token: t}",
            "username",
            "together with a token",
        ),
        ("{token: \"a\\nb\"}", "token", "has characters"),
        (
            "{exec: {command: a}}",
            "exec.apiVersion",
            "\"\"; supported: ",
        ),
        (
            "{exec: {apiVersion: client.authentication.k8s.io/v1, command: a}}",
            "exec.interactiveMode",
            "\"\"; supported: Never",
        ),
        (
            "{exec: {apiVersion: client.authentication.k8s.io/v1beta1}}",
            "exec.command",
            "is required",
        ),
        (
            "{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: a, interactiveMode: Always}}",
            "exec.interactiveMode",
            "no terminal",
        ),
    ] {
        let (found, text) = credentials(&dir, user).unwrap_err();
        assert!(found == field && text.contains(message), "{found}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_file_is_read_again_and_its_last_token_stays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let (credentials, _) = credentials(&dir, "{token: first, tokenFile: token}").unwrap();
    assert_eq!(authorization(&credentials).await, "Bearer first");
    for token in ["a", "b"] {
        fs::write(&file, format!("{token}\n")).unwrap();
        tokio::time::sleep(TOKEN_FILE_PERIOD).await;
        assert_eq!(authorization(&credentials).await, format!("Bearer {token}"));
    }
    fs::write(&file, " \n").unwrap();
    tokio::time::sleep(TOKEN_FILE_PERIOD).await;
    assert_eq!(authorization(&credentials).await, "Bearer b");

    let (credentials, _) = self::credentials(&dir, "{tokenFile: absent}").unwrap();
    let error = headers(&credentials).await.unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
    fs::write(dir.path().join("absent"), "c").unwrap();
    assert_eq!(authorization(&credentials).await, "Bearer c");
}

#[tokio::test]
async fn a_plugin_runs_again_once_its_token_has_expired_or_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let counter = dir.path().join("runs");
    let status = serde_json::json!({"token": "RUN", "expirationTimestamp": "TIME"});
    let script = format!(
        "echo >>{0}; sed -e \"s/RUN/$(wc -l <{0})/\" <<'END'\n{1}\nEND\n",
        counter.display(),
        output(&status)
    );
    let user = exec(&script.replace("TIME", "2001-01-01T00:00:00Z"), "");
    let (credentials, _) = credentials(&dir, &user).unwrap();
    assert_eq!(authorization(&credentials).await, "Bearer 1");
    assert_eq!(authorization(&credentials).await, "Bearer 2");

    fs::remove_file(&counter).unwrap();
    let user = exec(&script.replace("TIME", "2999-01-01T00:00:00Z"), "");
    let (credentials, _) = self::credentials(&dir, &user).unwrap();
    let mut headers = HeaderMap::new();
    let first = credentials.add_to(&mut headers).await.unwrap();
    assert_eq!(headers[AUTHORIZATION], "Bearer 1");
    assert_eq!(authorization(&credentials).await, "Bearer 1");
    credentials.refused(first.as_ref()).await;
    assert_eq!(authorization(&credentials).await, "Bearer 2");
    // A late refusal of the first token says nothing about the second one.
    credentials.refused(first.as_ref()).await;
    assert_eq!(authorization(&credentials).await, "Bearer 2");
}

#[tokio::test]
async fn requests_share_a_run_and_their_deadlines_do_not_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, runs) = (dir.path().join("fifo"), dir.path().join("runs"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let output = output(&serde_json::json!({"token": "t"}));
    let script = format!(
        "echo >>{}; read -r go <{}; echo '{output}'",
        runs.display(),
        fifo.display()
    );
    let (credentials, _) = credentials(&dir, &exec(&script, "")).unwrap();
    let asked = authorization(&credentials);
    let early = tokio::time::timeout(Duration::from_millis(300), asked).await;
    assert!(early.is_err());
    let others = futures::future::join(authorization(&credentials), authorization(&credentials));
    let go = blocking(move || fs::write(&fifo, "go\n"));
    let ((first, second), go) = futures::future::join(others, go).await;
    go.unwrap().unwrap();
    assert_eq!([first, second], ["Bearer t", "Bearer t"]);
    assert_eq!(fs::read_to_string(&runs).unwrap(), "\n", "it ran once");
}

#[tokio::test]
async fn a_plugin_may_write_yaml_and_much_to_its_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let script = "head -c 3000000 /dev/zero >&2; printf 'kind: ExecCredential\napiVersion: client.authentication.k8s.io/v1\nspec: null\nstatus:\n  token: t\n'";
    let (credentials, _) = credentials(&dir, &exec(script, "")).unwrap();
    assert_eq!(authorization(&credentials).await, "Bearer t");
}

#[tokio::test]
async fn a_plugins_certificate_is_presented() {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::<String>::new()).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let pem = |label: &str, der: &[u8]| pem::encode(&pem::Pem::new(label, der));
    let status = serde_json::json!({
        "clientCertificateData": pem("CERTIFICATE", certificate.der()),
        "clientKeyData": pem("PRIVATE KEY", key.serialized_der()),
    });
    let user = exec(&format!("cat <<'END'\n{}\nEND\n", output(&status)), "");
    let (credentials, identity) = credentials(&dir, &user).unwrap();
    let before = identity.connection();
    assert_eq!(authorization(&credentials).await, "");
    let shown = identity.current().unwrap();
    assert_eq!(shown.cert[0], *certificate.der());
    assert!(before.is_cancelled(), "a new connection is needed");
    // The same certificate again cuts no connection.
    let after = identity.connection();
    credentials.refused(None).await;
    assert_eq!(authorization(&credentials).await, "");
    assert!(!after.is_cancelled());
}

#[tokio::test]
async fn a_plugin_gets_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let script = format!(
        "cat >{0}; echo \"$KUBERNETES_EXEC_INFO $MINE\" >>{0}; echo '{1}'",
        seen.display(),
        output(&serde_json::json!({"token": "t"}))
    );
    let more = ", provideClusterInfo: true, env: [{name: MINE, value: yes!}]";
    let (credentials, _) = credentials(&dir, &exec(&script, more)).unwrap();
    assert_eq!(authorization(&credentials).await, "Bearer t");
    let text = fs::read_to_string(&seen).unwrap();
    let (json, mine) = text.trim().rsplit_once(' ').unwrap();
    assert_eq!(mine, "yes!");
    let info: serde_json::Value = serde_json::from_str(json).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": false,
            "cluster": {
                "server": "https://a:6443",
                "certificate-authority-data": "Q0E=",
                "proxy-url": "http://p:3128",
                "config": {"audience": "x"},
            },
        },
    });
    assert_eq!(info, expected);
}

#[tokio::test]
async fn a_plugins_failure_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let with_status = |status| format!("echo '{}'", output(&status));
    for (script, error) in [
        (
            "echo broken >&2; exit 3".to_owned(),
            "/bin/sh: exit status: 3: broken",
        ),
        (
            "echo {}".to_owned(),
            "/bin/sh: its output is a \"\" of \"\"; expected ",
        ),
        (
            "echo nonsense".to_owned(),
            "/bin/sh: its output is not an ExecCredential: .",
        ),
        (
            "yes".to_owned(),
            "/bin/sh: its output is longer than 1048576 bytes",
        ),
        (
            with_status(serde_json::json!(null)),
            "/bin/sh: its output has no status",
        ),
        (
            with_status(serde_json::json!({})),
            "/bin/sh: it returned neither a token nor a client certificate",
        ),
        (
            with_status(serde_json::json!({"token": "t", "clientKeyData": "k"})),
            "/bin/sh: it returned a client certificate or key without the other",
        ),
        (
            with_status(serde_json::json!({"clientCertificateData": "c", "clientKeyData": "k"})),
            "/bin/sh: client certificate: no certificate",
        ),
    ] {
        let (credentials, _) = credentials(&dir, &exec(&script, "")).unwrap();
        let found = headers(&credentials).await.unwrap_err().to_string();
        let begin = format!("exec plugin {error}");
        assert!(found.starts_with(&begin), "{found}");
    }
    let user = exec("", ", installHint: install me").replace("/bin/sh", "/no/such/plugin");
    let (credentials, _) = credentials(&dir, &user).unwrap();
    let text = headers(&credentials).await.unwrap_err().to_string();
    assert!(
        text.contains("/no/such/plugin") && text.contains("install me"),
        "{text}"
    );
    for output in [
        r#"{"kind": "ExecCredential", "status": "hidden"}"#,
        r#"{"status": {"token": 777777}}"#,
        "{hidden",
    ] {
        let user = exec(&format!("echo '{output}'"), "");
        let (credentials, _) = self::credentials(&dir, &user).unwrap();
        let text = headers(&credentials).await.unwrap_err().to_string();
        assert!(!text.contains("hidden") && !text.contains('7'), "{text}");
    }
}
