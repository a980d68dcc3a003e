//! The kubeconfig that the kubelet writes once it has a client certificate.

use std::{io, path::Path};

use atomic_file::Durability;
use serde_json::Value;

use crate::kubeconfig::Cluster;

/// Atomically writes a kubeconfig for `cluster` with the certificate and key in the file `pem`, as
/// upstream does after a bootstrap.
pub(super) fn write(path: &Path, cluster: &Cluster, pem: &Path) -> io::Result<()> {
    atomic_file::replace(
        path,
        text(cluster, pem).as_bytes(),
        0o600,
        Durability::Synced,
    )
}

fn text(cluster: &Cluster, pem: &Path) -> String {
    // A JSON string is also a YAML string.
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    let mut lines = vec![
        "apiVersion: v1".to_owned(),
        "clusters:".to_owned(),
        "- cluster:".to_owned(),
    ];
    match (
        &*cluster.certificate_authority,
        &*cluster.certificate_authority_data,
    ) {
        ("", "") => {}
        ("", data) => lines.push(format!("    certificate-authority-data: {}", quoted(data))),
        (path, _) => lines.push(format!("    certificate-authority: {}", quoted(path))),
    }
    if cluster.insecure_skip_tls_verify {
        lines.push("    insecure-skip-tls-verify: true".to_owned());
    }
    if !cluster.proxy_url.0.is_empty() {
        lines.push(format!("    proxy-url: {}", quoted(&cluster.proxy_url.0)));
    }
    lines.push(format!("    server: {}", quoted(&cluster.server)));
    if !cluster.tls_server_name.is_empty() {
        let name = quoted(&cluster.tls_server_name);
        lines.push(format!("    tls-server-name: {name}"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::{ClusterAccess, Secret};

    #[test]
    fn the_way_to_the_api_server_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.conf");
        let cluster = Cluster {
            server: "https://api.test:6443".to_owned(),
            tls_server_name: "kubernetes".to_owned(),
            insecure_skip_tls_verify: true,
            certificate_authority: "/etc/ca.pem".to_owned(),
            proxy_url: Secret("http://user:hidden@p:3128".to_owned()),
            ..Cluster::default()
        };
        write(&path, &cluster, Path::new("/pki/node.pem")).unwrap();
        let written = ClusterAccess::read(&path).unwrap();
        assert_eq!(written.cluster, cluster);
        assert!(!format!("{written:?}").contains("hidden"));
    }
}
