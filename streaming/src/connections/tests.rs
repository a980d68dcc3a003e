use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{advance, timeout};

use super::*;

/// Nine places: four for unauthenticated connections, two for those of one address.
fn limiter() -> Arc<ConnectionLimiter> {
    let limits = ConnectionLimits {
        connections: 9,
        unauthenticated: 4,
        unauthenticated_of_address: 2,
    };
    ConnectionLimiter::new("test", limits)
}

fn enter(limiter: &Arc<ConnectionLimiter>, address: &str) -> Arc<ConnectionSlot> {
    Arc::new(limiter.admit(address.parse().ok()))
}

fn is_evicted(slot: &ConnectionSlot) -> bool {
    slot.evicted().now_or_never().is_some()
}

fn reached(limiter: &ConnectionLimiter) -> [u64; 3] {
    limiter.bounds().map(|bound| bound.reached())
}

#[tokio::test]
async fn the_oldest_stranger_of_an_address_makes_room_for_the_next() {
    let limiter = limiter();
    let first = enter(&limiter, "192.0.2.1");
    let second = enter(&limiter, "::ffff:192.0.2.1");
    // Other addresses have their own share, one per /64 network.
    let others = [
        enter(&limiter, "2001:db8::1"),
        enter(&limiter, "2001:db8:0:1::1"),
    ];
    let third = enter(&limiter, "192.0.2.1");
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third));
    assert!(!others.iter().any(|other| is_evicted(other)));
    assert_eq!(reached(&limiter), [0, 0, 1]);
    // Its place is already given to another connection, so dropping it has no effect.
    drop(first);
    let fourth = enter(&limiter, "192.0.2.1");
    assert!(is_evicted(&second) && !is_evicted(&fourth));
    drop((second, third, fourth, others));
    let table = limiter.table.lock();
    assert!(table.clients.is_empty() && table.by_address.is_empty());
    assert_eq!(table.unauthenticated, 0);
}

#[tokio::test]
async fn strangers_of_many_addresses_make_room_among_themselves() {
    let limiter = limiter();
    let authenticated: Vec<_> = (1..=4)
        .map(|n| {
            let client = enter(&limiter, "198.51.100.1");
            (client.mark_authenticated(), n)
        })
        .collect();
    let alone = enter(&limiter, "192.0.2.1");
    let pair = [enter(&limiter, "192.0.2.2"), enter(&limiter, "192.0.2.2")];
    let last = enter(&limiter, "192.0.2.3");
    // The oldest connection of the address with the most is closed first.
    let next = enter(&limiter, "192.0.2.4");
    assert!(is_evicted(&pair[0]) && !is_evicted(&pair[1]));
    let more = enter(&limiter, "192.0.2.5");
    assert!(is_evicted(&alone));
    assert!(![last, next, more].iter().any(|slot| is_evicted(slot)));
    assert!(!authenticated.iter().any(|(busy, _)| is_evicted(&busy.0)));
    assert_eq!(reached(&limiter), [0, 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn who_is_let_in_gives_a_place_up_only_when_idle_and_strangers_before() {
    let limiter = limiter();
    let clients: Vec<_> = (0..9).map(|_| enter(&limiter, "192.0.2.1")).collect();
    // Only the last two of one address keep their places.
    drop(clients);
    let mut busy: Vec<_> = (0..8)
        .map(|_| enter(&limiter, "192.0.2.1").mark_authenticated())
        .collect();
    let stranger = enter(&limiter, "192.0.2.2");
    let next = enter(&limiter, "192.0.2.3");
    assert!(is_evicted(&stranger));
    let _ninth = next.mark_authenticated();

    // All are busy, so new connections wait.
    let waiting = timeout(Duration::from_secs(1), limiter.wait_for_slot()).await;
    assert!(waiting.is_err());
    let clients: Vec<_> = busy.iter().map(|busy| Arc::clone(&busy.0)).collect();
    drop(busy.swap_remove(3));
    timeout(Duration::from_secs(1), limiter.wait_for_slot())
        .await
        .unwrap();
    advance(Duration::from_secs(1)).await;
    busy.remove(0);
    let _newcomer = enter(&limiter, "192.0.2.4");
    let given_up: Vec<_> = clients.iter().map(|client| is_evicted(client)).collect();
    let longest_idle = given_up.iter().position(|given_up| *given_up);
    assert_eq!(longest_idle, Some(3), "{given_up:?}");
    assert_eq!(given_up.iter().filter(|given_up| **given_up).count(), 1);
    // An idle client with a new request is busy again.
    let again = clients[0].mark_authenticated();
    assert!(!is_evicted(&again.0));
}

#[test]
fn there_are_no_more_places_than_files_for_them() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap();
    assert_eq!(ConnectionLimits::within_open_files(32, 8).connections, 32);
    let limits = ConnectionLimits::within_open_files(usize::MAX, 8);
    assert_eq!(limits, ConnectionLimits::new((limit / 8).max(8)));
    assert!(
        limits.unauthenticated * 3 < limits.connections,
        "{limits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_sends_no_request_in_time_is_silent_and_who_did_never_is() {
    let limiter = limiter();
    let patience = Duration::from_secs(10);
    let silent = enter(&limiter, "192.0.2.1");
    let ended = timeout(patience * 2, silent.first_request_timeout(patience)).await;
    assert!(ended.is_ok());
    let asking = enter(&limiter, "192.0.2.1");
    let asks_late = async {
        tokio::time::sleep(patience - Duration::from_millis(1)).await;
        asking.note_request();
    };
    let (ended, ()) = tokio::join!(
        timeout(patience * 100, asking.first_request_timeout(patience)),
        asks_late
    );
    assert!(ended.is_err());
}
