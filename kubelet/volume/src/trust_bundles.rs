//! The certificates of trust bundles, as written to files for pods: each certificate once, and
//! nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hasher as _},
    sync::Arc,
};

use k8s_openapi::api::{
    certificates::v1beta1::ClusterTrustBundle, core::v1::ClusterTrustBundleProjection,
};
use kube::core::{ParseExpressionError, Selector, SelectorExt as _};
use kubelet_api_client::{
    certificate::pem,
    objects::{ObjectError, Objects},
};
use kubelet_host::repeatable;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::VolumeError;

/// Why there are no certificates; upstream's wording.
#[derive(Debug, thiserror::Error)]
enum TrustBundleError {
    #[error("while getting ClusterTrustBundle: {0}")]
    Missing(ObjectError),
    #[error("while parsing label selector: {0}")]
    Selector(ParseExpressionError),
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoneSelected,
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    Neither,
}

impl From<TrustBundleError> for VolumeError {
    fn from(error: TrustBundleError) -> Self {
        Self::Other(error.into())
    }
}

/// A deliberately unreliable order of certificates. It differs between runs of the kubelet, but
/// during a run it does not change when certificates are added or removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order(u64);

impl Order {
    /// The order for this run of the kubelet.
    pub(super) fn of_this_run() -> Self {
        Self(repeatable::random())
    }

    fn place(self, certificate: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher.write(certificate);
        hasher.finish()
    }
}

/// The certificates that `source` selects, as PEM; empty if it is optional and there are none.
pub(super) async fn certificates(
    objects: &dyn Objects,
    source: &ClusterTrustBundleProjection,
    order: Order,
) -> Result<String, VolumeError> {
    let bundles = bundles(objects, source).await?;
    Ok(merged(&bundles, order))
}

async fn bundles(
    objects: &dyn Objects,
    source: &ClusterTrustBundleProjection,
) -> Result<Vec<Arc<ClusterTrustBundle>>, VolumeError> {
    let is_optional = source.optional.unwrap_or_default();
    if let Some(name) = &source.name {
        return match objects.cluster_trust_bundle(name).await {
            Ok(bundle) => Ok(vec![bundle]),
            Err(error) if error.is_not_found() && is_optional => Ok(Vec::new()),
            Err(error) if error.is_not_found() => Err(TrustBundleError::Missing(error).into()),
            Err(error) => Err(error.into()),
        };
    }
    let Some(signer_name) = &source.signer_name else {
        return Err(TrustBundleError::Neither.into());
    };
    let selector = source.label_selector.clone().map(Selector::try_from);
    let selector = selector.transpose().map_err(TrustBundleError::Selector)?;
    let mut bundles = objects.cluster_trust_bundles_of(signer_name).await?;
    let unlabelled = BTreeMap::new();
    // A missing selector selects nothing; an empty one selects everything.
    bundles.retain(|bundle| {
        let labels = bundle.metadata.labels.as_ref().unwrap_or(&unlabelled);
        selector.as_ref().is_some_and(|one| one.matches(labels))
    });
    if bundles.is_empty() && !is_optional {
        return Err(TrustBundleError::NoneSelected.into());
    }
    Ok(bundles)
}

/// The certificates of all bundles, without anything else in these.
fn merged(bundles: &[Arc<ClusterTrustBundle>], order: Order) -> String {
    let mut certificates = BTreeSet::new();
    for bundle in bundles {
        // Removes PEM headers, which all contain a colon; lines of certificates never do.
        let lines = bundle.spec.trust_bundle.lines();
        let lines: Vec<&str> = lines.filter(|line| !line.contains(':')).collect();
        let text = lines.join("\n");
        let found = CertificateDer::pem_slice_iter(text.as_bytes());
        // Malformed certificates are skipped; the API server rejects bundles that contain any.
        certificates.extend(found.filter_map(Result::ok).map(|one| one.to_vec()));
    }
    let mut certificates: Vec<Vec<u8>> = certificates.into_iter().collect();
    certificates.sort_by_cached_key(|certificate| order.place(certificate));
    let certificates = certificates.iter();
    certificates
        .map(|certificate| pem::encode("CERTIFICATE", certificate))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_api_client::objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
    use serde_json::{Value, json};
    use test_api_server::by_path::ByPath;
    use tokio::sync::watch;
    use tokio_util::{sync::CancellationToken, task::TaskTracker};

    use super::*;

    const GROUP: &str = "certificates.k8s.io";
    const ORDER: Order = Order(7);

    fn certificate(number: u8) -> String {
        pem::encode("CERTIFICATE", &[number; 100])
    }

    /// The certificates in a file, by their numbers.
    fn numbers(file: &str) -> Vec<u8> {
        let found = CertificateDer::pem_slice_iter(file.as_bytes());
        found.map(|certificate| certificate.unwrap()[0]).collect()
    }

    fn sorted(file: &str) -> Vec<u8> {
        let mut numbers = numbers(file);
        numbers.sort_unstable();
        numbers
    }

    fn bundle(text: &str) -> Arc<ClusterTrustBundle> {
        let bundle = json!({"metadata": {}, "spec": {"trustBundle": text}});
        Arc::new(serde_json::from_value(bundle).unwrap())
    }

    #[test]
    fn each_certificate_is_there_once_and_nothing_else() {
        let with_headers = certificate(2).replacen(
            "-----\n",
            "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: DES-CBC,00\n\n",
            1,
        );
        let key = pem::encode("PRIVATE KEY", &[9; 100]);
        let broken = "-----BEGIN CERTIFICATE-----\n#\n-----END CERTIFICATE-----\n";
        let windows = certificate(3).replace('\n', "\r\n");
        let first = format!("# of the company: one\n{}text\n{key}", certificate(1));
        let second = format!("{broken}{with_headers}\n{windows}{}", certificate(1));
        let file = merged(&[bundle(&first), bundle(&second)], ORDER);
        assert_eq!(sorted(&file), [1, 2, 3]);
        let again: String = numbers(&file).into_iter().map(certificate).collect();
        assert_eq!(file, again);
        assert_eq!(merged(&[bundle(&key)], ORDER), "");
    }

    #[test]
    fn the_order_is_one_of_the_run() {
        let all: Vec<String> = (1..20).map(certificate).collect();
        let mut backwards = all.clone();
        backwards.reverse();
        let of = |certificates: &[String], order| {
            numbers(&merged(&[bundle(&certificates.concat())], Order(order)))
        };
        let order = of(&all, 1);
        assert_eq!(of(&backwards, 1), order);
        assert_ne!(of(&all, 2), order);
        // A new certificate does not reorder the others.
        let mut fewer = of(&all[1..], 1);
        let at = order.iter().position(|number| *number == 1).unwrap();
        fewer.insert(at, 1);
        assert_eq!(fewer, order);
    }

    /// The certificates for a source, in a cluster with four bundles.
    async fn outcome(source: Value) -> Result<Vec<u8>, String> {
        let server = ByPath::new();
        for (number, name, signer, label) in [
            (1, "plain", "", "a"),
            (2, "example.com:ca:1", "example.com/ca", "a"),
            (3, "example.com:ca:2", "example.com/ca", "b"),
            (4, "example.com:other:1", "example.com/other", "a"),
        ] {
            let bundle = json!({
                "metadata": {"name": name, "labels": {"label": label}},
                "spec": {"signerName": signer, "trustBundle": certificate(number)}
            });
            let path = format!("/apis/{GROUP}/v1beta1/clustertrustbundles");
            server.put(&path, bundle);
        }
        let objects = ApiObjects::new(ApiObjectsParts {
            client: server.client(),
            node: watch::channel(None).1,
            change_detection: ChangeDetection::Watch,
            sync_frequency: Duration::from_secs(60),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
        });
        let source = serde_json::from_value(source).unwrap();
        match certificates(&objects, &source, ORDER).await {
            Ok(file) => Ok(sorted(&file)),
            Err(error) => Err(error.to_string()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_names_a_bundle_or_selects_those_of_a_signer() {
        let none = Vec::<u8>::new();
        let name = |name: &str| json!({"path": "f", "name": name});
        assert_eq!(outcome(name("plain")).await.unwrap(), [1]);
        assert_eq!(outcome(name("example.com:ca:1")).await.unwrap(), [2]);
        assert_eq!(
            outcome(name("gone")).await.unwrap_err(),
            "while getting ClusterTrustBundle: \
             clustertrustbundle.certificates.k8s.io \"gone\" not found"
        );
        let mut optional = name("gone");
        optional["optional"] = json!(true);
        assert_eq!(outcome(optional).await.unwrap(), none);

        let signer = |selector: Value| json!({"path": "f", "signerName": "example.com/ca", "labelSelector": selector});
        assert_eq!(outcome(signer(json!({}))).await.unwrap(), [2, 3]);
        let selector = json!({"matchLabels": {"label": "b"}});
        assert_eq!(outcome(signer(selector)).await.unwrap(), [3]);
        let requirement = json!({"key": "label", "operator": "NotIn", "values": ["b"]});
        let selector = json!({"matchExpressions": [requirement]});
        assert_eq!(outcome(signer(selector)).await.unwrap(), [2]);
        // A missing selector selects nothing.
        let mut nothing = signer(Value::Null);
        assert_eq!(
            outcome(nothing.clone()).await.unwrap_err(),
            "combination of signerName and labelSelector matched zero ClusterTrustBundles"
        );
        nothing["optional"] = json!(true);
        assert_eq!(outcome(nothing).await.unwrap(), none);
        let requirement = json!({"key": "label", "operator": "Near"});
        let selector = json!({"matchExpressions": [requirement]});
        let error = outcome(signer(selector)).await.unwrap_err();
        assert!(
            error.starts_with("while parsing label selector: "),
            "{error}"
        );
        assert_eq!(
            outcome(json!({"path": "f"})).await.unwrap_err(),
            "ClusterTrustBundle projection requires either name or signerName to be set"
        );
    }
}
