//! The life cycle of streams and of their connection.

use super::*;

#[test]
fn what_came_for_a_refused_stream_is_given_back_and_not_counted() {
    let mut server = End::server();
    server.receive(settings(1000));
    server.says();
    // More data than all streams of a connection may have unread.
    for id in (1..=21).step_by(2) {
        let syn = ReceivedFrame::Syn {
            id,
            fin: false,
            unidirectional: false,
            headers: Headers::default(),
        };
        server.0.receive(syn).unwrap();
        server.receive_data(id, 500_000);
        server.0.refuse(id);
    }
    assert!(server.takes_more());
    assert_eq!(server.0.streams(), 0);
    let back = server.says().into_iter().filter_map(|frame| match frame {
        Frame::WindowUpdate { id: 0, delta } => Some(delta),
        _ => None,
    });
    // Half a window each.
    assert_eq!(back.collect::<Vec<_>>(), [2_500_000; 2]);
}

#[test]
fn no_stream_is_opened_when_the_other_side_says_good_bye() {
    let mut client = End::client();
    let (id, _replied) = client.0.open(Headers::default()).unwrap();
    client.receive(good_bye(1));
    assert!(client.0.open(Headers::default()).is_none());
    // Existing streams continue.
    client.says();
    assert!(client.queue(id, 10));
    assert_eq!(pieces(&client.says()), [1]);
}

#[test]
fn stream_numbers_end_with_31_bits() {
    for (mut end, last) in [(End::client(), 0x7fff_ffff), (End::server(), 0x7fff_fffe)] {
        end.0.next_ours = last;
        assert_eq!(end.0.open(Headers::default()).unwrap().0, last);
        assert!(end.0.open(Headers::default()).is_none());
    }
}

#[test]
fn a_stream_ends_once_and_not_behind_its_reset() {
    let mut server = End::server();
    server.accept([1, 3]);
    server.0.finish(1);
    server.0.finish(1);
    assert!(!server.queue(1, 1));
    assert_eq!(server.says(), [end(1)]);
    server.0.reset(3, status::CANCEL);
    server.0.finish(3);
    assert!(!server.queue(3, 1));
    assert_eq!(server.says(), [reset(3, status::CANCEL)]);
}

#[test]
fn what_is_over_is_not_reset_and_the_rest_is_once() {
    let mut server = End::server();
    server.accept([1, 3, 5, 7]);
    server.0.finish(1);
    server.receive_end(1);
    server.0.finish(3);
    server.receive_end(5);
    server.says();
    for id in [1, 3, 5, 7, 7] {
        server.0.reset(id, status::CANCEL);
    }
    assert_eq!(server.says(), [3, 5, 7].map(|id| reset(id, status::CANCEL)));
    assert_eq!(server.read(7), Poll::Ready(Err(status::CANCEL)));
}

#[test]
fn a_stream_is_forgotten_with_its_halves_and_reset_unless_the_other_side_ended_it() {
    let mut server = End::server();
    server.accept([1, 3, 5]);
    server.receive_end(1);
    server.receive(reset(3, status::CANCEL));
    for id in [1, 3, 5] {
        server.0.drop_reader(id);
    }
    assert_eq!(server.0.streams(), 3, "they may be written to");
    assert_eq!(server.says(), []);
    for id in [1, 3, 5] {
        server.0.drop_writer(id);
    }
    assert_eq!(server.0.streams(), 0);
    assert_eq!(server.says(), [end(1), end(5), reset(5, status::CANCEL)]);
}

#[test]
fn closing_sends_what_waits_and_resets_what_is_open_before_the_good_bye() {
    let mut server = End::server();
    server.accept([1, 3, 5, 7, 9]);
    server.0.finish(1);
    server.receive_end(1);
    server.receive(reset(3, status::CANCEL));
    server.0.finish(5);
    server.receive_end(7);
    server.says();
    assert!(server.queue(9, 10));
    server.0.close();
    let said = server.says();
    assert_eq!(pieces(&said), [9]);
    let [_, resets @ .., last] = &said[..] else {
        panic!("{said:?}");
    };
    let mut resets = resets.to_vec();
    resets.sort_by_key(|frame| match frame {
        Frame::RstStream { id, .. } => *id,
        _ => 0,
    });
    assert_eq!(resets, [5, 7, 9].map(|id| reset(id, status::CANCEL)));
    assert_eq!(*last, good_bye(9));
    assert_eq!(server.batch(), Poll::Ready(None));
}

#[test]
fn nothing_is_said_behind_the_good_bye_or_without_a_transport() {
    for (how, over) in [
        (
            "closing",
            ConnectionState::close as fn(&mut ConnectionState),
        ),
        ("closed", ConnectionState::closed),
    ] {
        let mut server = End::server();
        server.accept([1, 3, 5, 7]);
        over(&mut server.0);
        server.says();
        assert!(server.0.ping().is_none(), "{how}");
        assert!(server.0.open(Headers::default()).is_none(), "{how}");
        assert!(!server.queue(1, 1), "{how}");
        server.0.finish(1);
        server.0.reset(3, status::CANCEL);
        server.drop_halves(5);
        server.receive_end(7);
        server.drop_halves(7);
        server.0.close();
        assert_eq!(server.batch(), Poll::Ready(None), "{how}");
    }
}
