//! A guest with connections is saved and restored.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::super::mock_guest::{CID, Guest, Socket};
use super::super::packet::Op;
use super::*;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`.
const RESET: [u8; 4] = [0; 4];
/// As many event buffers as Linux posts.
const EVENT_BUFFERS: usize = 8;

/// A guest with event buffers and an open connection from the host.
fn connected() -> (Guest, Socket, UnixStream) {
    let mut guest = Guest::new();
    guest.post_event_buffers(EVENT_BUFFERS);
    let mut client = guest.client("CONNECT 1024\n");
    let socket = guest.accept(&mut client);
    (guest, socket, client)
}

/// The guest takes the reset and offers its buffer again, as Linux does.
fn confirm(guest: &mut Guest) {
    assert_eq!(guest.take_events(), [RESET]);
    guest.post_event_buffers(1);
}

#[test]
fn a_restored_guest_is_told_once_that_its_connections_are_gone() {
    let (guest, ..) = connected();
    let mut child = guest.restored_as(CID + 1, false);
    assert!(child.take_events().is_empty(), "not before it runs");
    child.wake();
    assert_ne!(child.interrupt().status(), 0);
    confirm(&mut child);
    let mut cid = [0; 8];
    child.device.read_config(0, &mut cid);
    assert_eq!(u64::from_le_bytes(cid), u64::from(CID) + 1);
    child.wake();
    child.settle();
    assert!(child.take_events().is_empty());
}

#[test]
fn the_machine_that_was_saved_keeps_its_connections() {
    let (mut guest, mut socket, mut client) = connected();
    let child = guest.restored();
    guest.send_data(&mut socket, b"still here");
    let mut read = [0; 10];
    client.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"still here");
    assert!(guest.take_events().is_empty());
    drop(child);
    client.write_all(b"and there").unwrap();
    assert_eq!(guest.expect(Op::Data).payload, b"and there");
}

#[test]
fn no_packet_overtakes_the_reset() {
    let (guest, ..) = connected();
    let mut child = guest.restored_as(CID, false);
    // A client may be faster than the first vCPU.
    let mut client = child.client("CONNECT 1024\nearly");
    child.settle();
    child.wake();
    child.settle();
    child.expect_silence();
    confirm(&mut child);
    let socket = child.accept(&mut client);
    assert_eq!(child.expect(Op::Data).payload, b"early");
    child.close(&socket);
}

#[test]
fn what_the_guest_says_of_old_connections_is_answered_with_a_reset() {
    let (guest, socket, client) = connected();
    let mut child = guest.restored();
    let mut old = socket;
    child.send_data(&mut old, b"who reads this?");
    child.expect_silence();
    confirm(&mut child);
    assert!(old.is(&child.expect(Op::Reset)));
    child.expect_silence();
    client.set_nonblocking(true).unwrap();
    let error = (&client).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "the parent's client");
}

#[test]
fn a_packet_that_nobody_took_before_is_taken_after() {
    let (mut guest, ..) = connected();
    // It lies in the ring, and its notification is lost with the process.
    let request = Socket::new(52, 4000).header(Op::Request);
    guest.transmit.forget_data();
    guest.transmit.send(&[&request.to_bytes()], &[]);
    let mut child = guest.restored_as(CID, false);
    let listener = child.listen(52);
    child.wake();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"hello").unwrap();
    child.settle();
    confirm(&mut child);
    child.expect(Op::Response);
    assert_eq!(child.expect(Op::Data).payload, b"hello");
}

#[test]
fn new_connections_have_other_ports_than_those_that_the_guest_may_still_have() {
    let (guest, socket, _client) = connected();
    let mut child = guest.restored();
    confirm(&mut child);
    let mut client = child.client("CONNECT 1024\n");
    let new = child.accept(&mut client);
    assert_eq!(new.guest, socket.guest);
    assert!(new.host > socket.host, "{new:?} {socket:?}");
}

#[test]
fn a_buffer_that_is_posted_only_later_gets_the_event() {
    for useless in [false, true] {
        let mut guest = Guest::new();
        if useless {
            // Too small for an event.
            guest.event.send(&[], &[3]);
        }
        let mut child = guest.restored();
        let returned: Vec<_> = child.event.used().iter().map(|used| used.len).collect();
        assert_eq!(returned, vec![0; usize::from(useless)]);
        child.post_event_buffers(EVENT_BUFFERS);
        confirm(&mut child);
        let mut client = child.client("CONNECT 1024\n");
        child.accept(&mut client);
    }
}

#[test]
fn a_guest_that_does_not_confirm_gets_its_packets_all_the_same() {
    let (guest, ..) = connected();
    let mut child = guest.restored();
    let mut client = child.client("CONNECT 1024\n");
    child.settle();
    child.expect_silence();
    // The limit began with the event.
    child.device.muxer.tick(Instant::now());
    child.wake();
    child.expect_silence();
    child.device.muxer.tick(Instant::now() + CONFIRM_LIMIT);
    child.wake();
    let socket = child.accept(&mut client);
    child.close(&socket);
}

#[test]
fn the_limit_begins_when_the_guest_does() {
    let (guest, ..) = connected();
    let mut child = guest.restored_as(CID, false);
    let _client = child.client("CONNECT 1024\n");
    child.settle();
    child.device.muxer.tick(Instant::now() + CONFIRM_LIMIT);
    child.device.backend_ready().unwrap();
    child.expect_silence();
    assert!(child.take_events().is_empty());
}

#[test]
fn with_event_indices_the_device_hears_of_the_confirmation() {
    let (guest, ..) = connected();
    let mut child = guest.restored_as(CID, true);
    child.wake();
    // Seven buffers are still there: the next one that comes is to be told.
    assert_eq!(child.event.available_event(), EVENT_BUFFERS as u16);
    confirm(&mut child);
    let mut client = child.client("CONNECT 1024\n");
    child.accept(&mut client);
}

#[test]
fn a_guest_that_is_saved_before_it_took_the_event_takes_them_all_first() {
    let (guest, ..) = connected();
    let first = guest.restored();
    let second = first.restored();
    let mut third = second.restored();
    let mut client = third.client("CONNECT 1024\n");
    third.settle();
    assert_eq!(third.take_events(), [RESET; 3]);
    third.post_event_buffers(2);
    third.expect_silence();
    third.post_event_buffers(1);
    third.accept(&mut client);
}

#[test]
fn generations_with_an_open_connection_each_all_connect() {
    let (mut guest, ..) = connected();
    for _ in 0..20 {
        guest = guest.restored();
        confirm(&mut guest);
        let mut client = guest.client("CONNECT 1024\n");
        let mut socket = guest.accept(&mut client);
        guest.send_data(&mut socket, b"ready");
        let mut read = [0; 5];
        client.read_exact(&mut read).unwrap();
    }
}

#[test]
fn a_driver_that_starts_anew_has_nothing_to_confirm() {
    let (guest, ..) = connected();
    let mut child = guest.restored_as(CID, false);
    child.reboot();
    child.wake();
    let mut client = child.client("CONNECT 1024\n");
    child.accept(&mut client);
    child.post_event_buffers(EVENT_BUFFERS);
    assert!(child.take_events().is_empty());
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut guest = Guest::new();
    let good = guest.device.save().unwrap();
    for len in 0..good.len() {
        guest.device.restore(&good[..len]).unwrap_err();
    }
    guest
        .device
        .restore(&[&good[..], &[0]].concat())
        .unwrap_err();
    let mut refused = |next_host_port, unconfirmed_resets, text: &str| {
        let state = VsockState::V1(VsockV1 {
            next_host_port,
            unconfirmed_resets,
        });
        let bytes = state::encode(NAME, &state).unwrap();
        let error = guest.device.restore(&bytes).unwrap_err();
        assert!(matches!(error, StateError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(1024, 0, "1024");
    refused(1 << 31, 0, "2147483648");
    refused(1 << 30, 17, "17 events");
}
