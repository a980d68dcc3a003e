//! Cluster trust bundles, by name or by signer. Clusters serve them in different versions of the
//! API, or not at all.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, ClusterTrustBundleSpec};
use kube::{
    Api, Client,
    api::{ApiResource, GroupVersionKind, NotUsed, Object},
};
use tokio::sync::OnceCell;
use tracing::info;

use super::{
    ObjectError,
    watch_cache::{WatchCache, WatchTarget},
};
use crate::{
    list_watch::{ListWatch, ObjectChange},
    request::ask_within,
};

/// Their resource, as upstream writes it in messages.
const RESOURCE: &str = "clustertrustbundle.certificates.k8s.io";
const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "clustertrustbundles";
/// The versions of the API in order of preference. A bundle's content is the same in all.
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// How long the first call waits for discovery of the API version.
const DISCOVERY: Duration = Duration::from_secs(5);

/// The cluster trust bundles that pods use.
pub(super) struct TrustBundles {
    client: Client,
    /// The version that the API server serves; determined on first use.
    version: OnceCell<&'static str>,
    cache: Arc<WatchCache<Bundles>>,
}

impl TrustBundles {
    /// Makes no request yet.
    pub(super) fn new(client: Client, cache: Arc<WatchCache<Bundles>>) -> Self {
        Self {
            client,
            version: OnceCell::new(),
            cache,
        }
    }

    /// The bundle of this name.
    pub(super) async fn named(&self, name: &str) -> Result<Arc<ClusterTrustBundle>, ObjectError> {
        let bundles = self.selected("metadata.name", name).await?;
        let bundle = bundles.into_values().next();
        bundle.ok_or_else(|| ObjectError::not_found(RESOURCE, name))
    }

    /// The bundles of this signer, ordered by name.
    pub(super) async fn of_signer(
        &self,
        signer_name: &str,
    ) -> Result<Vec<Arc<ClusterTrustBundle>>, ObjectError> {
        let bundles = self.selected("spec.signerName", signer_name).await?;
        Ok(bundles.into_values().collect())
    }

    /// The bundles with this value of a field.
    async fn selected(&self, field: &'static str, value: &str) -> Result<ByName, ObjectError> {
        if !is_selectable(value) {
            return Ok(ByName::new());
        }
        let version = self.version.get_or_try_init(|| self.served(value));
        let selection = Selection {
            version: version.await?,
            field,
            value: value.to_owned(),
        };
        let known = self.cache.known(selection).await;
        known.map_err(|unknown| unknown.error(RESOURCE, value, ObjectError::TrustBundlesUnread))
    }

    /// Determines the preferred version that the API server serves. `value` is for the error.
    async fn served(&self, value: &str) -> Result<&'static str, ObjectError> {
        for version in VERSIONS {
            let api_version = format!("{GROUP}/{version}");
            let resources = self.client.list_api_group_resources(&api_version);
            match ask_within(DISCOVERY, resources).await {
                Ok(list) if list.resources.iter().any(|one| one.name == PLURAL) => {
                    info!(%api_version, "the API server serves trust bundles");
                    return Ok(version);
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(ObjectError::of(RESOURCE, value, &error)),
            }
        }
        Err(ObjectError::Refused {
            resource: RESOURCE,
            name: value.to_owned(),
            message: format!(
                "the API server serves {PLURAL} in none of the {GROUP} versions that this kubelet \
                 supports: {}",
                VERSIONS.join(", ")
            ),
        })
    }
}

/// Whether `value` is a possible name or signer. Other values, if the API server did not validate
/// them, could add requirements to the field selector.
fn is_selectable(value: &str) -> bool {
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte);
    !value.is_empty() && value.bytes().all(is_ours)
}

/// Bundles that share a watch.
pub(super) struct Bundles;

/// The selector of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selection {
    version: &'static str,
    field: &'static str,
    value: String,
}

type ByName = BTreeMap<String, Arc<ClusterTrustBundle>>;

impl WatchTarget for Bundles {
    type Key = Selection;
    type Kind = Object<ClusterTrustBundleSpec, NotUsed>;
    type State = ByName;

    fn changes(client: Client, key: &Selection) -> ListWatch<Self::Kind> {
        let kind = GroupVersionKind::gvk(GROUP, key.version, "ClusterTrustBundle");
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let selector = format!("{}={}", key.field, key.value);
        ListWatch::new(Api::all_with(client, &resource), selector)
    }

    fn apply(known: &mut ByName, change: ObjectChange<Self::Kind>) {
        match change {
            ObjectChange::Replaced(bundles) => *known = bundles.into_iter().map(kept).collect(),
            ObjectChange::Updated(bundle) => known.extend([kept(bundle)]),
            ObjectChange::Deleted(bundle) => {
                known.remove(&kept(bundle).0);
            }
        }
    }
}

/// The bundle with its name as key.
fn kept(mut bundle: Object<ClusterTrustBundleSpec, NotUsed>) -> (String, Arc<ClusterTrustBundle>) {
    bundle.metadata.managed_fields = None;
    let name = bundle.metadata.name.clone().unwrap_or_default();
    let bundle = ClusterTrustBundle {
        metadata: bundle.metadata,
        spec: bundle.spec,
    };
    (name, Arc::new(bundle))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use test_api_server::by_path::{ByPath, Health};
    use tokio::time::sleep;
    use tokio_util::{sync::CancellationToken, task::TaskTracker};

    use super::*;

    const DISCOVERED: &str = "/apis/certificates.k8s.io";
    const BETA: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    const MINUTE: Duration = Duration::from_secs(60);

    struct Setup {
        server: ByPath,
        bundles: TrustBundles,
        tasks: TaskTracker,
    }

    /// A server that serves the bundles in these versions.
    fn setup(versions: &[&str]) -> Setup {
        let server = ByPath::new();
        server.serve(GROUP, PLURAL, &VERSIONS, versions);
        let (client, tasks) = (server.client(), TaskTracker::new());
        let cancel = CancellationToken::new();
        let cache = WatchCache::new(client.clone(), MINUTE, tasks.clone(), cancel);
        let bundles = TrustBundles::new(client, cache);
        Setup {
            server,
            bundles,
            tasks,
        }
    }

    fn bundle(name: &str, signer: &str, certificates: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {"signerName": signer, "trustBundle": certificates}
        })
    }

    impl Setup {
        /// The contents of a signer's bundles.
        async fn of_signer(&self, signer_name: &str) -> Result<Vec<String>, String> {
            let bundles = self.bundles.of_signer(signer_name).await;
            let bundles = bundles.map_err(|error| error.to_string())?;
            let text = |bundle: &Arc<ClusterTrustBundle>| bundle.spec.trust_bundle.clone();
            Ok(bundles.iter().map(text).collect())
        }

        async fn named(&self, name: &str) -> Result<String, String> {
            let bundle = self.bundles.named(name).await;
            let bundle = bundle.map_err(|error| error.to_string())?;
            assert_eq!(bundle.metadata.managed_fields, None);
            Ok(bundle.spec.trust_bundle.clone())
        }

        /// Lets all pending work finish.
        async fn settle(&self) {
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_is_followed_from_when_it_is_asked_for() {
        let setup = setup(&["v1beta1"]);
        setup.settle().await;
        assert_eq!(setup.server.requests(), [""; 0]);
        setup.server.put(BETA, bundle("example.com:ca:1", "", "1"));
        setup.server.put(BETA, bundle("other", "", "2"));
        assert_eq!(setup.named("example.com:ca:1").await.unwrap(), "1");
        setup.server.put(BETA, bundle("example.com:ca:1", "", "3"));
        setup.settle().await;
        assert_eq!(setup.named("example.com:ca:1").await.unwrap(), "3");
        assert_eq!(
            setup.server.requests(),
            [
                format!("GET {DISCOVERED}/v1"),
                format!("GET {DISCOVERED}/v1beta1"),
                format!("GET {BETA}"),
                format!("WATCH {BETA}"),
            ]
        );
        setup.server.remove(BETA, "example.com:ca:1");
        setup.settle().await;
        assert_eq!(
            setup.named("example.com:ca:1").await.unwrap_err(),
            "clustertrustbundle.certificates.k8s.io \"example.com:ca:1\" not found"
        );
        // A bundle cannot have this name, and no request is made.
        let error = setup.named("a,metadata.name=b").await.unwrap_err();
        assert!(error.ends_with("not found"), "{error}");
        assert_eq!(setup.server.watches(), 1);
        sleep(2 * MINUTE).await;
        assert_eq!((setup.server.watches(), setup.tasks.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn bundles_of_a_signer_come_and_go() {
        let setup = setup(&["v1beta1", "v1alpha1"]);
        let signer = "example.com/ca";
        assert_eq!(setup.of_signer(signer).await.unwrap(), [""; 0]);
        for (name, of, text) in [
            ("example.com:ca:b", signer, "2"),
            ("example.com:ca:a", signer, "1"),
            ("example.com:other:a", "example.com/other", "3"),
        ] {
            setup.server.put(BETA, bundle(name, of, text));
        }
        setup.settle().await;
        assert_eq!(setup.of_signer(signer).await.unwrap(), ["1", "2"]);
        setup.server.remove(BETA, "example.com:ca:a");
        setup.settle().await;
        assert_eq!(setup.of_signer(signer).await.unwrap(), ["2"]);
        setup.server.set_health(Health::Down);
        setup.settle().await;
        assert_eq!(setup.of_signer(signer).await.unwrap(), ["2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_version_is_one_that_the_server_has() {
        for version in VERSIONS {
            let setup = setup(&[version]);
            let path = format!("{DISCOVERED}/{version}/{PLURAL}");
            setup.server.put(&path, bundle("b", "", "1"));
            assert_eq!(setup.named("b").await.unwrap(), "1", "{version}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_bundles_is_asked_again() {
        let setup = setup(&[]);
        assert_eq!(
            setup.named("b").await.unwrap_err(),
            "cannot read clustertrustbundle.certificates.k8s.io \"b\": the API server serves \
             clustertrustbundles in none of the certificates.k8s.io versions that this kubelet \
             supports: v1, v1beta1, v1alpha1"
        );
        setup.server.set_health(Health::Forbidding);
        assert_eq!(
            setup.named("b").await.unwrap_err(),
            "cannot read clustertrustbundle.certificates.k8s.io \"b\": not for this node"
        );
        setup.server.set_health(Health::Up);
        setup.server.serve(GROUP, PLURAL, &VERSIONS, &["v1beta1"]);
        setup.server.put(BETA, bundle("b", "", "1"));
        assert_eq!(setup.named("b").await.unwrap(), "1");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_read_yet_is_not_missing() {
        let setup = setup(&["v1beta1"]);
        assert_eq!(setup.of_signer("a/b").await.unwrap(), [""; 0]);
        setup.server.set_health(Health::Hung);
        assert_eq!(
            setup.named("b").await.unwrap_err(),
            "ClusterTrustBundle informer has not yet synced"
        );
    }
}
