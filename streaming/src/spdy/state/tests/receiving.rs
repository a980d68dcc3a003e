//! Received frames, and the window updates for them.

use super::*;

#[test]
fn a_peer_that_shows_windows_is_told_ours_once() {
    let mut server = End::server();
    let mut client = End(ConnectionState::new(false));
    assert_eq!(server.says(), []);
    // A client shows flow control at once; a server waits for the client.
    assert_eq!(client.says(), [settings(512 * 1024)]);
    // Raises the connection's window from SPDY's 64 KiB to 4 MiB.
    let raise = update(0, 4 * 1024 * 1024 - 64 * 1024);
    server.receive(settings(1000));
    client.receive(settings(1000));
    assert_eq!(server.says(), [settings(512 * 1024), raise.clone()]);
    assert_eq!(client.says(), [raise]);
    server.receive(settings(2000));
    client.receive(update(0, 1));
    assert_eq!(server.says(), []);
    assert_eq!(client.says(), []);
}

#[test]
fn half_a_window_is_given_back_when_it_was_read() {
    let mut server = End::server();
    server.receive(settings(1000));
    server.accept([1, 3]);
    let mut given = Vec::new();
    for _ in 0..31 {
        server.receive_data(1, 64 * KIB);
        assert!(server.read(1).is_ready());
        given.extend(server.says());
    }
    // An update for every 256 KiB that were read of the stream's 512 KiB.
    assert_eq!(given, vec![update(1, 256 * 1024); 7]);
    server.receive_data(1, 64 * KIB - 1);
    assert!(server.read(1).is_ready());
    assert_eq!(server.says(), []);
    server.receive_data(3, 1);
    assert_eq!(server.says(), [], "it was not read");
    // 2 MiB of the connection's 4 MiB were read now.
    assert!(server.read(3).is_ready());
    assert_eq!(server.says(), [update(0, 2 * 1024 * 1024)]);
}

#[test]
fn what_nobody_will_read_is_given_back_and_not_kept() {
    let ended = |server: &mut End| server.receive_end(1);
    let reset_by_us = |server: &mut End| server.0.reset(1, status::CANCEL);
    let reset_by_them = |server: &mut End| server.receive(reset(1, status::CANCEL));
    let reader_dropped = |server: &mut End| server.0.drop_reader(1);
    let forgotten = |server: &mut End| server.drop_halves(1);
    for (how, over) in [
        ("ended", &ended as &dyn Fn(&mut End)),
        ("reset by us", &reset_by_us),
        ("reset by them", &reset_by_them),
        ("reader dropped", &reader_dropped),
        ("forgotten", &forgotten),
    ] {
        let mut server = End::server();
        server.receive(settings(1000));
        server.accept([1]);
        over(&mut server);
        server.says();
        server.receive_data(1, 2 * MIB);
        assert_eq!(server.0.kept(), 0, "{how}");
        let said = server.says();
        let back = update(0, 2 * 1024 * 1024);
        assert_eq!(said.first(), Some(&back), "{how}");
        assert!(!said.iter().any(|it| matches!(it, Frame::RstStream { .. })));
    }
}

#[test]
fn an_empty_frame_is_not_the_end() {
    let mut server = End::server();
    server.accept([1]);
    server.receive_data(1, 0);
    assert!(server.read(1).is_pending());
    server.receive_data(1, 5);
    assert_eq!(
        server.read(1),
        Poll::Ready(Ok(Some(Bytes::from(vec![7; 5]))))
    );
    server.receive_end(1);
    assert_eq!(server.read(1), Poll::Ready(Ok(None)));
}

#[test]
fn a_frame_for_a_stream_that_never_was_is_answered_with_a_reset() {
    let mut server = End::server();
    let mut client = End::client();
    for (end, ours, theirs) in [
        (&mut server, &[2][..], &[1, 3, 5, 7, 9][..]),
        (&mut client, &[1, 3, 5], &[2]),
    ] {
        end.accept(theirs.iter().copied());
        for id in ours {
            assert_eq!(end.0.open(Headers::default()).unwrap().0, *id);
        }
        for id in ours.iter().chain(theirs) {
            end.drop_halves(*id);
        }
        end.says();
        assert_eq!(end.0.streams(), 0);
    }
    for (end, past, never) in [
        (&mut server, &[1, 2, 3, 5, 7, 9][..], &[4, 6, 8, 11][..]),
        (&mut client, &[1, 2, 3, 5], &[4, 6, 7, 9]),
    ] {
        for &id in past {
            end.receive_data(id, 10);
            let fin = false;
            end.0.receive(ReceivedFrame::Reply { id, fin }).unwrap();
            assert_eq!(end.says(), [], "stream {id} was there");
        }
        for &id in never {
            end.receive_data(id, 10);
            let fin = false;
            end.0.receive(ReceivedFrame::Reply { id, fin }).unwrap();
            let answer = reset(id, status::INVALID_STREAM);
            assert_eq!(end.says(), [answer.clone(), answer]);
        }
    }
}

#[test]
fn a_window_may_be_exactly_what_31_bits_hold() {
    let mut server = End::server();
    server.accept([1]);
    server.receive(settings(0x7fff_ffff));
    server.receive(update(0, 0x7fff_ffff - 64 * 1024));
    server.says();
    assert!(server.queue(1, 10));
    server.receive(update(1, 10));
    assert_eq!(pieces(&server.says()), [1]);
    server.receive(update(1, 1));
    let reset = reset(1, status::FLOW_CONTROL_ERROR);
    assert_eq!(server.says(), [reset]);
    server.receive(update(0, 10));
    server.try_receive(update(0, 1)).unwrap_err();
}

#[test]
fn a_stream_may_have_one_mebibyte_and_all_together_four() {
    // A piece also counts its overhead.
    let share = MIB - OVERHEAD;
    let mut server = End::server();
    server.accept([1, 3, 5, 7, 9]);
    // Neither exceeds its share, although both together have more than one share.
    server.receive_data(1, 600_000);
    server.receive_data(3, 600_000);
    assert!(server.takes_more());

    server.receive_data(5, share);
    assert!(server.takes_more());
    server.receive_data(5, 1);
    assert!(!server.takes_more());
    assert!(server.read(5).is_ready());
    assert!(server.takes_more());
    for id in [1, 3, 5] {
        assert!(server.read(id).is_ready());
    }

    for id in [1, 3, 5, 7] {
        server.receive_data(id, share);
        assert!(server.takes_more());
    }
    server.receive_data(9, 1);
    assert!(!server.takes_more());
    server.0.drop_reader(1);
    assert!(server.takes_more());
    for id in [3, 5, 7, 9] {
        assert!(server.read(id).is_ready());
    }
    // Nothing is stored any more, and the same amount fits again.
    for id in [3, 5, 7] {
        server.receive_data(id, share);
    }
    assert!(server.takes_more());
}

#[test]
fn a_stream_alone_is_stopped_and_goes_on_when_its_reader_does() {
    let mut server = End::server();
    server.accept([1]);
    server.receive_data(1, MIB - OVERHEAD);
    assert!(server.takes_more());
    server.receive_data(1, 1);
    let (waiting, waker) = Waiting::new();
    let mut cx = Context::from_waker(&waker);
    assert!(server.0.poll_may_receive(&mut cx).is_pending());
    assert_eq!(waiting.wakes(), 0);
    assert!(server.read(1).is_ready());
    assert_eq!(waiting.wakes(), 1);
    assert!(server.takes_more());
}

#[test]
fn no_more_is_read_while_512_answers_wait() {
    let mut server = End::server();
    for _ in 0..512 {
        server.receive(Frame::Ping(1));
    }
    assert!(server.takes_more());
    server.receive(Frame::Ping(3));
    let (waiting, waker) = Waiting::new();
    let mut cx = Context::from_waker(&waker);
    assert!(server.0.poll_may_receive(&mut cx).is_pending());
    let answers = server.says();
    assert_eq!(answers.len(), 513);
    assert_eq!(answers.last(), Some(&Frame::Ping(3)));
    assert_eq!(waiting.wakes(), 1);
    assert!(server.takes_more());
}
