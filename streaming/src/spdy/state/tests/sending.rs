//! The order of sent frames, and the limits on queued data.

use super::*;

#[test]
fn a_batch_has_256_kib() {
    let mut server = End::server();
    server.accept([1, 3, 5]);
    for id in [1, 3, 5] {
        for _ in 0..2 {
            // With its overhead, a quarter of a batch.
            assert!(server.queue(id, 64 * KIB - OVERHEAD));
        }
    }
    server.receive(Frame::Ping(1));
    let Poll::Ready(Some(first)) = server.batch() else {
        panic!("nothing to send");
    };
    assert_eq!(first[0], Frame::Ping(1), "it overtakes data");
    assert_eq!(pieces(&first), [1, 1, 3, 3]);
    let Poll::Ready(Some(second)) = server.batch() else {
        panic!("nothing more to send");
    };
    assert_eq!(pieces(&second), [5, 5]);
    assert_eq!(server.batch(), Poll::Pending);
}

/// Creates an end with eight full streams, which together use the connection's limit.
fn crowded() -> End {
    let mut server = End::server();
    server.accept((1..=19).step_by(2));
    for id in (1..=15).step_by(2) {
        for _ in 0..2 {
            assert!(server.queue(id, 64 * KIB));
        }
        assert!(!server.queue(id, 1), "a stream has no more than 128 KiB");
    }
    server
}

#[test]
fn one_mebibyte_waits_of_all_streams_and_a_piece_of_each_other() {
    let mut server = crowded();
    let (waiting, waker) = Waiting::new();
    assert!(server.queue(17, 64 * KIB));
    assert!(!server.queue_or_wake(17, 10, &waker));
    // Exactly 1 MiB is still queued, so no writer is woken.
    server.0.sent([(1, 64 * KIB)].into_iter());
    assert_eq!(waiting.wakes(), 0);
    assert!(!server.queue_or_wake(17, 10, &waker));
    server.0.sent([(1, 1)].into_iter());
    assert_eq!(waiting.wakes(), 1);
    assert!(server.queue(17, 10));
}

#[test]
fn a_stream_that_waits_for_its_window_is_not_woken_by_what_others_send() {
    let mut server = End::server();
    server.receive(settings(1000));
    server.accept([1, 3]);
    let (waiting, waker) = Waiting::new();
    assert!(server.queue(1, 1000));
    assert!(!server.queue_or_wake(1, 1, &waker));
    assert!(server.queue(3, 1000));
    server.0.sent([(3, 1000)].into_iter());
    assert_eq!(waiting.wakes(), 0);
    server.receive(update(1, 1));
    assert_eq!(waiting.wakes(), 1);
    assert!(server.queue(1, 1));
}

#[test]
fn what_waits_of_a_reset_stream_is_dropped_and_its_room_is_free() {
    let mut server = crowded();
    let (waiting, waker) = Waiting::new();
    assert!(server.queue(17, 64 * KIB));
    assert!(!server.queue_or_wake(17, 64 * KIB, &waker));
    server.receive(reset(1, status::CANCEL));
    assert_eq!(waiting.wakes(), 1);
    // 64 of its 128 KiB exceeded the connection's limit.
    assert!(server.queue(17, 64 * KIB));
    assert!(server.queue(19, 1));
    assert!(!server.queue(19, 1), "more is free than was dropped");
    server.0.reset(3, status::CANCEL);
    let mut expected: Vec<u32> = (5..=15).step_by(2).flat_map(|id| [id, id]).collect();
    expected.extend([17, 17, 19]);
    let said = server.says();
    assert_eq!(pieces(&said), expected);
    assert_eq!(said.last(), Some(&reset(3, status::CANCEL)));
}

#[test]
fn what_is_written_while_its_stream_goes_is_not_sent() {
    let reset_by_them = |server: &mut End| server.receive(reset(1, status::CANCEL));
    let transport_gone = |server: &mut End| server.0.closed();
    for (over, after) in [
        (&reset_by_them as &dyn Fn(&mut End), Poll::Pending),
        (&transport_gone, Poll::Ready(None)),
    ] {
        let mut server = End::server();
        server.accept([1]);
        let room = server.0.poll_reserve(1, 10, &mut idle());
        assert_eq!(room, Poll::Ready(Ok(10)));
        over(&mut server);
        server.0.write(1, Bytes::from_static(b"0123456789"));
        assert_eq!(server.batch(), after);
    }
}

#[test]
fn a_stream_s_window_that_is_used_up_is_no_question_of_the_connection_s() {
    let mut server = End::server();
    server.receive(settings(1000));
    server.accept([1]);
    assert!(server.queue(1, 1000));
    assert!(!server.queue(1, 1));
    let said = server.says();
    assert_eq!(pieces(&said), [1]);
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn sixteen_pings_wait_for_their_answers() {
    let mut server = End::server();
    let mut answers: Vec<_> = std::iter::from_fn(|| server.0.ping()).take(100).collect();
    assert_eq!(answers.len(), 16);
    let said = server.says();
    // Even IDs are the server's.
    assert_eq!(
        said,
        (2..=32).step_by(2).map(Frame::Ping).collect::<Vec<_>>()
    );
    server.receive(Frame::Ping(4));
    answers[1].try_recv().unwrap();
    answers[0].try_recv().unwrap_err();
    assert!(server.0.ping().is_some());
    assert!(server.0.ping().is_none());
}
