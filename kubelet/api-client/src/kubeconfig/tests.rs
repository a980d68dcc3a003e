use super::*;

const CLUSTER: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
    contexts: [{name: other}, {name: c, context: {cluster: c, user: u}}]\n\
    clusters: [{name: c, cluster: {server: 'https://a:6443', certificate-authority: ca.crt}}]\n";

fn access(dir: &tempfile::TempDir, text: &str) -> Result<ClusterAccess, KubeconfigError> {
    let path = dir.path().join("kubelet.conf");
    fs::write(&path, text).unwrap();
    ClusterAccess::read(&path)
}

#[test]
fn relative_paths_are_below_the_files_directory() {
    let dir = tempfile::tempdir().unwrap();
    let user = "users:\n- name: other\n- name: u\n  user:\n    client-certificate: node.pem\n    \
                client-key: /keys/node.pem\n    tokenFile: token\n    exec:\n      \
                apiVersion: client.authentication.k8s.io/v1\n      command: ./login\n";
    let found = access(&dir, &format!("{CLUSTER}{user}")).unwrap();
    let below = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(found.url, "https://a:6443");
    assert_eq!(found.cluster.certificate_authority, below("ca.crt"));
    assert_eq!(found.user.client_certificate, below("node.pem"));
    assert_eq!(found.user.client_key, "/keys/node.pem");
    assert_eq!(found.user.token_file, below("token"));
    assert_eq!(found.user.exec.unwrap().command, below("./login"));

    let in_path = user.replace("./login", "login");
    let found = access(&dir, &format!("{CLUSTER}{in_path}")).unwrap();
    assert_eq!(found.user.exec.unwrap().command, "login");
}

#[test]
fn fields_without_a_value_are_unset_and_unknown_fields_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let user = "users:\n- name: u\n  newer: 1\n  user:\n    token:\n    as-groups: null\npreferences: {}\n---\nkind: a\n";
    let found = access(&dir, &format!("{CLUSTER}{user}")).unwrap();
    assert!(found.pair.is_none());
    assert_eq!(found.user.token.0, "");
}

#[test]
fn errors_name_the_file_and_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let user = "users: [{name: u, user: {}}]\n";
    for (text, error) in [
        ("users: [\n".to_owned(), "line "),
        (
            "kind: a\nkind: b\n".to_owned(),
            "line 2, column 1: duplicate field \"kind\"",
        ),
        (
            "clusters:\n- name: c\n  cluster: {server: [a]}\n".to_owned(),
            "clusters[0].cluster.server: invalid type: sequence, expected a string",
        ),
        (String::new(), "current-context: there is no context \"\""),
        (
            format!("{CLUSTER}{user}").replace("cluster: c,", "cluster: d,"),
            "cluster: there is no cluster \"d\"",
        ),
        (
            format!("{CLUSTER}{user}").replace("https://a:6443", "https://"),
            "server: \"https://\": ",
        ),
        (
            format!("{CLUSTER}{user}").replace("https://a:6443", "ftp://a"),
            "server: \"ftp://a\" is not an HTTP URL",
        ),
        (
            format!("{CLUSTER}users: [{{name: u, user: {{auth-provider: {{name: gcp}}}}}}]\n"),
            "auth-provider: \"gcp\": these plugins are not supported",
        ),
        (
            "users:\n- name: u\n  user:\n    password: 12345678\n".to_owned(),
            "users[0].user.password: is not a string",
        ),
    ] {
        let found = access(&dir, &text).unwrap_err().to_string();
        let path = dir.path().join("kubelet.conf");
        let begin = format!("kubeconfig {}: {error}", path.display());
        assert!(found.starts_with(&begin), "{found}");
    }
    let error = ClusterAccess::read(&dir.path().join("absent")).unwrap_err();
    assert!(
        error.to_string().contains("absent: No such file"),
        "{error}"
    );
}

#[test]
fn a_context_may_have_no_user() {
    let dir = tempfile::tempdir().unwrap();
    for text in [CLUSTER.to_owned(), CLUSTER.replace(", user: u", "")] {
        let found = access(&dir, &text).unwrap();
        assert!(found.pair.is_none() && found.user.exec.is_none());
    }
}

#[test]
fn a_server_without_a_scheme_has_that_of_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let with_authority = CLUSTER.replace("https://a:6443", "10.0.0.1:6443");
    let without = with_authority.replace(", certificate-authority: ca.crt", "");
    assert_eq!(
        access(&dir, &with_authority).unwrap().url,
        "https://10.0.0.1:6443"
    );
    assert_eq!(access(&dir, &without).unwrap().url, "http://10.0.0.1:6443");
}

#[test]
fn base64_may_have_line_breaks() {
    let data = Source::new("certificate-authority-data", "Q0\n  E=\n", "").unwrap();
    assert_eq!(data.unwrap().read().unwrap(), b"CA");
}

#[test]
fn secrets_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let user = "users: [{name: u, user: {token: hidden, password: hidden, client-key-data: aGlkZGVu, client-certificate: a, exec: {env: [{name: a, value: hidden}]}}}]\n";
    let found = access(&dir, &format!("{CLUSTER}{user}")).unwrap();
    let shown = format!("{found:?}");
    assert!(
        !shown.contains("hidden") && !shown.contains("aGlkZGVu"),
        "{shown}"
    );
}
