//! The kubeconfig that a node has once it has a certificate.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use kube::config::Cluster;
use serde_json::Value;

/// Writes, whole or not at all, the kubeconfig that reaches `cluster` with the pair at
/// `pem`, as upstream's after a bootstrap.
pub(super) fn write(path: &Path, cluster: &Cluster, pem: &Path) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut dirs = fs::DirBuilder::new();
    dirs.recursive(true).mode(0o755);
    dirs.create(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.tmp"));
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(text(cluster, pem).as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    fs::File::open(dir)?.sync_all()
}

fn text(cluster: &Cluster, pem: &Path) -> String {
    // A JSON string is a YAML one.
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    let mut lines = vec![
        "apiVersion: v1".to_owned(),
        "clusters:".to_owned(),
        "- cluster:".to_owned(),
    ];
    match (
        &cluster.certificate_authority,
        &cluster.certificate_authority_data,
    ) {
        (Some(path), _) if !path.is_empty() => {
            lines.push(format!("    certificate-authority: {}", quoted(path)));
        }
        (_, Some(data)) => lines.push(format!("    certificate-authority-data: {}", quoted(data))),
        _ => {}
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        lines.push("    insecure-skip-tls-verify: true".to_owned());
    }
    let server = cluster.server.as_deref().unwrap_or_default();
    lines.push(format!("    server: {}", quoted(server)));
    if let Some(name) = &cluster.tls_server_name {
        lines.push(format!("    tls-server-name: {}", quoted(name)));
    }
    let pem = quoted(&pem.to_string_lossy());
    lines.push(format!(
        "  name: default-cluster\n\
         contexts:\n\
         - context:\n    cluster: default-cluster\n    namespace: default\n    user: default-auth\n  name: default-context\n\
         current-context: default-context\n\
         kind: Config\n\
         users:\n\
         - name: default-auth\n  user:\n    client-certificate: {pem}\n    client-key: {pem}\n"
    ));
    lines.join("\n")
}
