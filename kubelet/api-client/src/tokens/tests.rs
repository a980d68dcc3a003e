use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::sleep;

use super::*;
use crate::objects::Answer;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3600;

/// A server that counts the tokens it issues, each valid for at most `cap` seconds. Its clock is
/// `ahead` of this node's.
#[derive(Debug)]
struct Server {
    cap: i64,
    ahead: SignedDuration,
    asked: AtomicUsize,
    is_away: AtomicBool,
}

impl Server {
    fn new(cap: i64, ahead: SignedDuration) -> Self {
        Self {
            cap,
            ahead,
            asked: AtomicUsize::new(0),
            is_away: AtomicBool::new(false),
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Objects for Server {
    fn service_account_token<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        request: TokenRequestSpec,
    ) -> Answer<'a, TokenRequestStatus> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(ObjectError::Unavailable {
                resource: "serviceaccount",
                name: "default".to_owned(),
                message: "away".to_owned(),
            })));
        }
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

/// The number of requests to a server when the cache is asked every minute for `minutes`.
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
    // A token is at most a day old, whatever its lifetime.
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    assert_eq!(asked_within(&server, 25 * 60, 7 * 24 * HOUR).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_is_the_one_that_the_server_granted() {
    // A day is requested and an hour is granted: the token is renewed every 48 minutes.
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
    // The node's clock is ahead: less than the hour seems to be left.
    let server = Server::new(HOUR, -minutes(50));
    assert_eq!(asked_within(&server, 60, HOUR).await, 8);
    // The node's clock is behind: the token expires before this clock says so.
    let server = Server::new(HOUR, minutes(50));
    assert_eq!(asked_within(&server, 60, HOUR).await, 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_token_is_used_until_its_end_while_there_is_no_other() {
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    let cache = TokenCache::default();
    let pod = pod();
    let get = || async {
        let token = cache.get(&server, &pod, &[], Some(HOUR)).await;
        token.map(|token| token.token.unwrap())
    };
    assert_eq!(get().await.unwrap(), "token-1");
    server.is_away.store(true, Ordering::Relaxed);
    // Each call requests a new token; the old one is valid until its expiry.
    sleep(50 * MINUTE).await;
    assert_eq!(get().await.unwrap(), "token-1");
    sleep(10 * MINUTE - Duration::from_secs(5)).await;
    assert_eq!(get().await.unwrap(), "token-1");
    assert_eq!(server.asked(), 3);
    sleep(Duration::from_secs(10)).await;
    assert!(get().await.unwrap_err().is_away());
    server.is_away.store(false, Ordering::Relaxed);
    assert_eq!(get().await.unwrap(), "token-5");
    assert_eq!(get().await.unwrap(), "token-5");
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_by_the_clock_that_runs_while_the_machine_sleeps() {
    let expires = Time(clock::now() - SignedDuration::from_secs(1));
    let cached = CachedToken {
        token: TokenRequestStatus {
            expiration_timestamp: Some(expires),
            ..Default::default()
        },
        got: Instant::now(),
        lifetime: SignedDuration::from_hours(1),
    };
    assert!(cached.is_over() && !cached.is_fresh());
}

#[tokio::test(start_paused = true)]
async fn tokens_that_were_had_together_are_not_renewed_together() {
    let expires = Time(clock::now() + SignedDuration::from_hours(1));
    let token = TokenRequestStatus {
        expiration_timestamp: Some(expires),
        ..Default::default()
    };
    let cached = CachedToken::new(token, HOUR);
    sleep(48 * MINUTE - Duration::from_secs(2)).await;
    let fresh = (0..200).filter(|_| cached.is_fresh()).count();
    assert!((20..180).contains(&fresh), "{fresh}");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_for_one_pod_account_audience_and_lifetime() {
    let server = Server::new(i64::MAX, SignedDuration::ZERO);
    let cache = TokenCache::default();
    let mut other = pod();
    other.metadata.uid = Some("other".to_owned());
    let vault = ["vault".to_owned()];
    let account = |uid: &str| ObjectMeta {
        name: Some("default".to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    // Each has its own token, which the second round returns from the cache.
    for _ in 0..2 {
        let tokens = [
            cache.get(&server, &pod(), &[], None).await,
            cache.get(&server, &other, &[], None).await,
            cache.get(&server, &pod(), &vault, None).await,
            cache.get(&server, &pod(), &[], Some(2 * HOUR)).await,
            cache.get_of(&server, &pod(), &account("a"), &[]).await,
            cache.get_of(&server, &pod(), &account("b"), &[]).await,
        ];
        for (index, token) in tokens.into_iter().enumerate() {
            let expected = format!("token-{}", index + 1);
            assert_eq!(token.unwrap().token, Some(expected));
        }
    }
    cache.forget(&PodUid::from("other"));
    let token = cache.get(&server, &other, &[], None).await;
    assert_eq!(token.unwrap().token.as_deref(), Some("token-7"));
    let token = cache.get(&server, &pod(), &[], None).await;
    assert_eq!(token.unwrap().token.as_deref(), Some("token-1"));
}
