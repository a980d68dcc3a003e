//! The UIDs of static pods, compared with those that Kubernetes 1.36 computes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kubelet_pod_spec::{config_hash::config_hash, manifest::decode};

#[test]
fn static_pods_have_the_uids_that_upstream_gives_them() {
    let rows = include_str!("config_hash.tsv").lines();
    let mut different = Vec::new();
    let mut count = 0;
    for row in rows.filter(|row| !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let [case, expected, manifest] = fields[..] else {
            panic!("{row}");
        };
        let pod = &decode(manifest.as_bytes()).unwrap().pods[0];
        let place = b"host:node-1file:/etc/kubernetes/manifests/web.yaml";
        if config_hash(pod, place).unwrap() != expected {
            different.push(case);
        }
        count += 1;
    }
    assert!(different.is_empty(), "{different:?}");
    assert!(count >= 60, "{count} rows");
}
