use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::{
    api::{
        core::v1::{
            ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service,
            ServiceAccount,
        },
        node::v1::RuntimeClass,
        storage::v1::{CSIDriver, VolumeAttachment},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use tokio::time::sleep;

use super::*;
use crate::apiserver::objects::{Answer, NoObjects};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3600;

/// A server that counts its tokens and gives none for longer than `cap` seconds. Its clock
/// is `ahead` of this node's.
#[derive(Debug)]
struct Server {
    cap: i64,
    ahead: SignedDuration,
    asked: AtomicUsize,
}

impl Server {
    fn new(cap: i64, ahead: SignedDuration) -> Self {
        let asked = AtomicUsize::new(0);
        Self { cap, ahead, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Objects for Server {
    fn config_map<'a>(&'a self, a: &'a str, b: &'a str) -> Answer<'a, Arc<ConfigMap>> {
        NoObjects.config_map(a, b)
    }
    fn secret<'a>(&'a self, a: &'a str, b: &'a str) -> Answer<'a, Arc<Secret>> {
        NoObjects.secret(a, b)
    }
    fn persistent_volume_claim<'a>(
        &'a self,
        a: &'a str,
        b: &'a str,
    ) -> Answer<'a, Arc<PersistentVolumeClaim>> {
        NoObjects.persistent_volume_claim(a, b)
    }
    fn persistent_volume<'a>(&'a self, a: &'a str) -> Answer<'a, Arc<PersistentVolume>> {
        NoObjects.persistent_volume(a)
    }
    fn csi_driver<'a>(&'a self, a: &'a str) -> Answer<'a, Arc<CSIDriver>> {
        NoObjects.csi_driver(a)
    }
    fn runtime_class<'a>(&'a self, a: &'a str) -> Answer<'a, Arc<RuntimeClass>> {
        NoObjects.runtime_class(a)
    }
    fn volume_attachment<'a>(&'a self, a: &'a str) -> Answer<'a, Arc<VolumeAttachment>> {
        NoObjects.volume_attachment(a)
    }
    fn service_account<'a>(&'a self, a: &'a str, b: &'a str) -> Answer<'a, Arc<ServiceAccount>> {
        NoObjects.service_account(a, b)
    }
    fn services(&self) -> Answer<'_, Vec<Arc<Service>>> {
        NoObjects.services()
    }
    fn node(&self) -> Answer<'_, Option<Arc<Node>>> {
        NoObjects.node()
    }
    fn service_account_token<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let lifetime = request.expiration_seconds.unwrap_or(HOUR).min(self.cap);
        let ends = clock::now() + self.ahead + SignedDuration::from_secs(lifetime);
        let status = TokenRequestStatus {
            token: Some(format!("token-{number}")),
            expiration_timestamp: Some(Time(ends)),
        };
        Box::pin(std::future::ready(Ok(status)))
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("web".to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod.metadata.uid = Some("uid".to_owned());
    pod
}

/// How often a server is asked by somebody who asks the cache each minute, until `minutes`
/// have passed.
async fn asked_within(server: &Server, minutes: u32, expiration: i64) -> usize {
    let cache = TokenCache::default();
    for _ in 0..minutes {
        let token = cache.get(server, &pod(), &[], Some(expiration)).await;
        token.unwrap();
        sleep(MINUTE).await;
    }
    server.asked()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_when_a_fifth_of_its_life_is_left() {
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    assert_eq!(asked_within(&server, 47, HOUR).await, 1);
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    assert_eq!(asked_within(&server, 60, HOUR).await, 2);
    // However long it is valid, it gets no older than a day.
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    assert_eq!(asked_within(&server, 25 * 60, 7 * 24 * HOUR).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_is_the_one_that_the_server_granted() {
    // A day is asked for and an hour is had, which is renewed every 48 minutes.
    let server = Server::new(HOUR, SignedDuration::ZERO);
    let asked = asked_within(&server, 5 * 60, 24 * HOUR).await;
    assert_eq!(asked, 7, "times in five hours");
    let server = Server::new(600, SignedDuration::ZERO);
    let asked = asked_within(&server, 60, HOUR).await;
    assert_eq!(asked, 8, "times in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_wrong_neither_floods_the_server_nor_outlives_the_token() {
    let minutes = SignedDuration::from_mins;
    // The node's clock is ahead, as if less than the hour were left.
    let server = Server::new(HOUR, -minutes(50));
    assert_eq!(asked_within(&server, 60, HOUR).await, 8);
    // It is behind: the token ends before this node's clock says so.
    let server = Server::new(HOUR, minutes(50));
    assert_eq!(asked_within(&server, 60, HOUR).await, 2);
}
