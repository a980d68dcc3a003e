use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{advance, timeout};

use super::*;

/// Nine places: four for unauthenticated connections, two for those of one address.
fn places() -> Arc<Places> {
    let room = Room {
        connections: 9,
        strangers: 4,
        strangers_of_address: 2,
    };
    Places::new("test", room)
}

fn enter(places: &Arc<Places>, address: &str) -> Arc<Place> {
    Arc::new(places.enter(address.parse().ok()))
}

fn is_given_up(place: &Place) -> bool {
    place.given_up().now_or_never().is_some()
}

fn reached(places: &Places) -> [u64; 3] {
    places.bounds().map(|bound| bound.reached())
}

#[tokio::test]
async fn the_oldest_stranger_of_an_address_makes_room_for_the_next() {
    let places = places();
    let first = enter(&places, "192.0.2.1");
    let second = enter(&places, "::ffff:192.0.2.1");
    // Other addresses have their own share, one per /64 network.
    let others = [
        enter(&places, "2001:db8::1"),
        enter(&places, "2001:db8:0:1::1"),
    ];
    let third = enter(&places, "192.0.2.1");
    assert!(is_given_up(&first) && !is_given_up(&second) && !is_given_up(&third));
    assert!(!others.iter().any(|other| is_given_up(other)));
    assert_eq!(reached(&places), [0, 0, 1]);
    // Its place is already given to another connection, so dropping it has no effect.
    drop(first);
    let fourth = enter(&places, "192.0.2.1");
    assert!(is_given_up(&second) && !is_given_up(&fourth));
    drop((second, third, fourth, others));
    let taken = places.taken.lock();
    assert!(taken.clients.is_empty() && taken.by_address.is_empty());
    assert_eq!(taken.strangers, 0);
}

#[tokio::test]
async fn strangers_of_many_addresses_make_room_among_themselves() {
    let places = places();
    let let_in: Vec<_> = (1..=4)
        .map(|n| {
            let client = enter(&places, "198.51.100.1");
            (client.let_in(), n)
        })
        .collect();
    let alone = enter(&places, "192.0.2.1");
    let pair = [enter(&places, "192.0.2.2"), enter(&places, "192.0.2.2")];
    let last = enter(&places, "192.0.2.3");
    // The oldest connection of the address with the most is closed first.
    let next = enter(&places, "192.0.2.4");
    assert!(is_given_up(&pair[0]) && !is_given_up(&pair[1]));
    let more = enter(&places, "192.0.2.5");
    assert!(is_given_up(&alone));
    assert!(![last, next, more].iter().any(|place| is_given_up(place)));
    assert!(!let_in.iter().any(|(busy, _)| is_given_up(&busy.0)));
    assert_eq!(reached(&places), [0, 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn who_is_let_in_gives_a_place_up_only_when_idle_and_strangers_before() {
    let places = places();
    let clients: Vec<_> = (0..9).map(|_| enter(&places, "192.0.2.1")).collect();
    // Only the last two of one address keep their places.
    drop(clients);
    let mut busy: Vec<_> = (0..8)
        .map(|_| enter(&places, "192.0.2.1").let_in())
        .collect();
    let stranger = enter(&places, "192.0.2.2");
    let next = enter(&places, "192.0.2.3");
    assert!(is_given_up(&stranger));
    let _ninth = next.let_in();

    // All are busy, so new connections wait.
    let waiting = timeout(Duration::from_secs(1), places.room()).await;
    assert!(waiting.is_err());
    let clients: Vec<_> = busy.iter().map(|busy| Arc::clone(&busy.0)).collect();
    drop(busy.swap_remove(3));
    timeout(Duration::from_secs(1), places.room())
        .await
        .unwrap();
    advance(Duration::from_secs(1)).await;
    busy.remove(0);
    let _newcomer = enter(&places, "192.0.2.4");
    let given_up: Vec<_> = clients.iter().map(|client| is_given_up(client)).collect();
    let longest_idle = given_up.iter().position(|given_up| *given_up);
    assert_eq!(longest_idle, Some(3), "{given_up:?}");
    assert_eq!(given_up.iter().filter(|given_up| **given_up).count(), 1);
    // An idle client with a new request is busy again.
    let again = clients[0].let_in();
    assert!(!is_given_up(&again.0));
}

#[test]
fn there_are_no_more_places_than_files_for_them() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap();
    assert_eq!(Room::within_open_files(32, 8).connections, 32);
    let room = Room::within_open_files(usize::MAX, 8);
    assert_eq!(room, Room::new((limit / 8).max(8)));
    assert!(room.strangers * 3 < room.connections, "{room:?}");
}

#[tokio::test(start_paused = true)]
async fn who_sends_no_request_in_time_is_silent_and_who_did_never_is() {
    let places = places();
    let patience = Duration::from_secs(10);
    let silent = enter(&places, "192.0.2.1");
    let ended = timeout(patience * 2, silent.stays_silent(patience)).await;
    assert!(ended.is_ok());
    let asking = enter(&places, "192.0.2.1");
    let asks_late = async {
        tokio::time::sleep(patience - Duration::from_millis(1)).await;
        asking.asks();
    };
    let (ended, ()) = tokio::join!(
        timeout(patience * 100, asking.stays_silent(patience)),
        asks_late
    );
    assert!(ended.is_err());
}
