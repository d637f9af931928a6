use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::super::credit::BUF_ALLOC;
use super::super::mock_guest::{BUFFERS, CID, Guest, Socket};
use super::super::packet::{Op, SHUTDOWN_BOTH, SHUTDOWN_SEND, TYPE_STREAM};
use super::*;

/// Bytes that differ at every place where a mistake could hide.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect()
}

fn read_to_end(mut stream: &UnixStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn the_configuration_space_is_the_guests_address() {
    let guest = Guest::new();
    let mut space = [0; 8];
    guest.device.read_config(0, &mut space);
    assert_eq!(u64::from_le_bytes(space), u64::from(CID));
    let mut tail = [0; 8];
    guest.device.read_config(4, &mut tail);
    assert_eq!(tail, [0; 8]);
    for offset in [1, 7, 8, u64::MAX] {
        guest.device.read_config(offset, &mut space);
    }
}

#[test]
fn the_host_connects_to_the_guest() {
    let mut guest = Guest::new();
    let mut client = guest.client("CONNECT 1234\nearly bytes");
    let mut socket = guest.accept(&mut client);
    assert_eq!(socket.guest, 1234);
    assert_eq!(guest.expect(Op::Data).payload, b"early bytes");
    guest.send_data(&mut socket, b"answer");
    guest.close(&socket);
    assert_eq!(read_to_end(&client), b"answer");
}

#[test]
fn a_port_without_a_listener_closes_the_client_without_a_word() {
    let mut guest = Guest::new();
    let client = guest.client("CONNECT 1\n");
    let request = guest.expect(Op::Request);
    let socket = Socket::new(request.header.src_port, request.header.dst_port);
    guest.send(socket.header(Op::Reset));
    assert_eq!(read_to_end(&client), b"");
    // Never a reset for a reset.
    guest.expect_silence();
}

#[test]
fn clients_that_talk_nonsense_are_closed() {
    let mut guest = Guest::new();
    let garbage: [&[u8]; 5] = [
        b"HELLO\n",
        b"CONNECT x\n",
        b"CONNECT 99999999999\n",
        &[0xff; 64],
        b"\n",
    ];
    let clients: Vec<_> = garbage
        .iter()
        .map(|bytes| {
            let mut client = guest.client("");
            client.write_all(bytes).unwrap();
            client
        })
        .collect();
    guest.settle();
    for mut client in clients {
        // An end or, with bytes of the client unread, a reset: never an answer.
        assert!(!matches!(client.read(&mut [0; 16]), Ok(1..)));
    }
    guest.expect_silence();
}

#[test]
fn without_a_driver_clients_are_closed_at_once() {
    let mut guest = Guest::new();
    guest.device.stop();
    let mut client = guest.client("CONNECT 1\n");
    guest.settle();
    assert!(!matches!(client.read(&mut [0; 16]), Ok(1..)));
}

#[test]
fn the_guest_connects_to_the_host() {
    let mut guest = Guest::new();
    let listener = guest.listen(52);
    let (mut socket, mut stream) = guest.connect(&listener, 52, 4000);
    guest.send_data(&mut socket, b"question");
    let mut question = [0; 8];
    stream.read_exact(&mut question).unwrap();
    assert_eq!(&question, b"question");
    stream.write_all(b"answer").unwrap();
    assert_eq!(guest.expect(Op::Data).payload, b"answer");
    drop(stream);
    assert_eq!(guest.expect(Op::Shutdown).header.flags, SHUTDOWN_BOTH);
    guest.send(socket.header(Op::Reset));
    guest.expect_silence();
}

#[test]
fn a_server_that_writes_at_once_does_not_overtake_the_response() {
    let mut guest = Guest::frozen();
    let listener = guest.listen(52);
    let mut socket = Socket::new(52, 4000);
    guest.send(socket.header(Op::Request));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&pattern(100, 1)).unwrap();
    guest.settle();
    guest.post(BUFFERS);
    let response = guest.expect(Op::Response);
    socket.took(&response);
    assert_eq!(guest.expect(Op::Data).payload, pattern(100, 1));
}

#[test]
fn what_the_host_does_not_offer_is_refused() {
    let mut guest = Guest::new();
    std::fs::create_dir(guest.path_of(2)).unwrap();
    std::os::unix::fs::symlink(guest.path(), guest.path_of(3)).unwrap();
    drop(guest.listen(4));
    for port in 1..=4 {
        let socket = Socket::new(port, 4000);
        guest.send(socket.header(Op::Request));
        let reset = guest.expect(Op::Reset);
        assert!(socket.is(&reset), "port {port}");
    }
    guest.expect_silence();
}

#[test]
fn a_host_that_never_accepts_delays_nobody() {
    let mut guest = Guest::new();
    let _listener = guest.listen(52);
    let start = Instant::now();
    let mut refused = 0;
    for port in 0..6000 {
        guest.send(Socket::new(52, port).header(Op::Request));
        refused += usize::from(guest.next().op() == Op::Reset);
    }
    assert!(refused > 0);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn other_addresses_and_types_are_refused() {
    let mut guest = Guest::new();
    let _listener = guest.listen(52);
    let good = Socket::new(52, 4000).header(Op::Request);
    let seqpacket = 2;
    let wrong_host = Header { dst_cid: 3, ..good };
    let wrong_type = Header {
        kind: seqpacket,
        ..good
    };
    let wrong_op = Header { op: 99, ..good };
    for header in [wrong_host, wrong_type, wrong_op] {
        guest.send(header);
        let reset = guest.expect(Op::Reset).header;
        assert_eq!(reset.src_cid, header.dst_cid);
        assert_eq!(reset.kind, header.kind);
        assert_eq!((reset.src_port, reset.dst_port), (52, 4000));
        // The same as a reset is not answered.
        guest.send(Header {
            op: Op::Reset as u16,
            kind: seqpacket,
            ..header
        });
        guest.expect_silence();
    }
    guest.send(Header { src_cid: 8, ..good });
    guest.expect_silence();
}

#[test]
fn packets_for_unknown_connections_are_reset() {
    let mut guest = Guest::new();
    for op in [
        Op::Response,
        Op::Shutdown,
        Op::Data,
        Op::CreditUpdate,
        Op::CreditRequest,
    ] {
        let socket = Socket::new(9, 10);
        guest.send(socket.header(op));
        assert!(socket.is(&guest.expect(Op::Reset)));
    }
    guest.send(Socket::new(9, 10).header(Op::Reset));
    guest.expect_silence();
}

#[test]
fn packets_may_be_split_anywhere() {
    let mut guest = Guest::new();
    let listener = guest.listen(52);
    let (mut socket, mut stream) = guest.connect(&listener, 52, 4000);
    let payload = pattern(300, 3);
    for cut in [1, 43, 44, 45, 200] {
        let header = Header {
            len: payload.len() as u32,
            ..socket.header(Op::Data)
        };
        let packet = [&header.to_bytes()[..], &payload].concat();
        let (front, back) = packet.split_at(cut);
        let (middle, end) = back.split_at(7);
        guest.send_pieces(&[front, middle, end]);
        socket.sent += 300;
        let mut read = [0; 300];
        stream.read_exact(&mut read).unwrap();
        assert_eq!(read[..], payload);
    }
    // Bytes behind the payload are not part of the packet.
    let header = Header {
        len: 3,
        ..socket.header(Op::Data)
    };
    guest.send_pieces(&[&header.to_bytes(), b"abcdef"]);
    guest.close(&socket);
    assert_eq!(read_to_end(&stream), b"abc");
}

#[test]
fn receive_buffers_may_be_split_anywhere() {
    let mut guest = Guest::frozen();
    let mut client = guest.client("CONNECT 5\n");
    client.write_all(&pattern(1000, 4)).unwrap();
    guest.settle();
    // Too short for a header; no room for payload; then ones that serve.
    for shape in [&[20][..], &[44], &[1, 42, 5, 3], &[43, 1, 500, 2000]] {
        guest.receive.send(&[], shape);
    }
    guest.device.queue_notified(0).unwrap();
    let used: Vec<_> = guest.receive.used().iter().map(|used| used.len).collect();
    assert_eq!(used, [0, 0, HEADER_LEN as u32]);
    let socket = Socket::new(1 << 30, 5);
    let response = socket.header(Op::Response).to_bytes();
    guest.transmit.send(&[&response], &[]);
    guest.device.queue_notified(1).unwrap();
    let used: Vec<_> = guest.receive.used().iter().map(|used| used.len).collect();
    assert_eq!(used, [HEADER_LEN as u32 + 1000]);
}

#[test]
fn malformed_packets_are_dropped() {
    let mut guest = Guest::new();
    guest.send_pieces(&[&[0; 10]]);
    guest.send_pieces(&[&[0; 43]]);
    guest.expect_silence();
    // The header promises more than there is, on a connection and without.
    let listener = guest.listen(52);
    let (socket, stream) = guest.connect(&listener, 52, 4000);
    let header = Header {
        len: u32::MAX,
        ..socket.header(Op::Data)
    };
    guest.send_pieces(&[&header.to_bytes(), b"short"]);
    assert!(socket.is(&guest.expect(Op::Reset)));
    assert_eq!(read_to_end(&stream), b"");
}

/// Streams `data` from the guest in packets of up to 64 KiB.
fn stream_out(guest: &mut Guest, socket: &mut Socket, data: &[u8]) {
    let mut rest = data;
    while !rest.is_empty() {
        while socket.credit() == 0 {
            let packet = guest.next();
            assert!(socket.is(&packet));
            assert_eq!(packet.op(), Op::CreditUpdate);
            socket.took(&packet);
        }
        let (now, later) = rest.split_at(rest.len().min(socket.credit()).min(65_536));
        guest.send_data(socket, now);
        rest = later;
    }
}

#[test]
fn a_slow_host_gets_every_byte() {
    let mut guest = Guest::new();
    let listener = guest.listen(52);
    let (mut socket, mut stream) = guest.connect(&listener, 52, 4000);
    stream.set_read_timeout(None).unwrap();
    let data = pattern(24 << 20, 5);
    let expected = data.clone();
    let (start, started) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        started.recv().unwrap();
        let mut read = vec![0; expected.len()];
        // Byte by byte at first, then in odd pieces.
        for byte in &mut read[..5000] {
            stream.read_exact(std::slice::from_mut(byte)).unwrap();
        }
        for part in read[5000..].chunks_mut(70_001) {
            stream.read_exact(part).unwrap();
        }
        assert!(read == expected);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    // The host reads nothing until the guest is out of credit.
    let first = socket.credit();
    assert_eq!(first, BUF_ALLOC as usize);
    stream_out(&mut guest, &mut socket, &data[..first]);
    let mut sent = first;
    guest.settle();
    while let Some(packet) = guest.received.pop_front() {
        socket.took(&packet);
        let more = socket.credit();
        stream_out(&mut guest, &mut socket, &data[sent..sent + more]);
        sent += more;
        guest.settle();
    }
    assert_eq!(socket.credit(), 0);
    assert!(!guest.turn(Duration::ZERO), "a blocked stream spins");
    start.send(()).unwrap();
    stream_out(&mut guest, &mut socket, &data[sent..]);
    // Closing at once loses nothing of what is still on its way.
    guest.send(socket.shutdown(SHUTDOWN_BOTH));
    while guest.next().op() != Op::Reset {}
    while !reader.is_finished() {
        guest.turn(Duration::from_millis(20));
    }
    reader.join().unwrap();
}

#[test]
fn a_slow_guest_gets_every_byte() {
    let mut guest = Guest::new();
    let mut client = guest.client("CONNECT 5\n");
    let mut socket = guest.accept(&mut client);
    let data = pattern(24 << 20, 6);
    let expected = data.clone();
    let writer = std::thread::spawn(move || {
        client.write_all(&data).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        client
    });
    let mut read = Vec::new();
    loop {
        let packet = guest.next();
        match packet.op() {
            // The guest's program reads only when the buffer is full.
            Op::CreditRequest => {
                socket.taken = read.len() as u32;
                guest.send(socket.header(Op::CreditUpdate));
            }
            Op::Data => read.extend(packet.payload),
            Op::Shutdown => {
                assert_eq!(packet.header.flags, SHUTDOWN_SEND);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(read == expected);
    // The other direction is still open.
    let client = writer.join().unwrap();
    let data = pattern(1 << 20, 7);
    let expected = data.clone();
    let reader = std::thread::spawn(move || assert!(read_to_end(&client) == expected));
    stream_out(&mut guest, &mut socket, &data);
    guest.close(&socket);
    while !reader.is_finished() {
        guest.turn(Duration::from_millis(20));
    }
    reader.join().unwrap();
}

#[test]
fn many_streams_echo_at_once() {
    const STREAMS: u32 = 64;
    const LEN: usize = 300_000;
    let mut guest = Guest::new();
    let mut clients = Vec::new();
    let mut sockets = Vec::new();
    for n in 0..STREAMS {
        let mut client = guest.client(&format!("CONNECT {n}\n"));
        sockets.push((guest.accept(&mut client), Vec::new()));
        clients.push((client, pattern(LEN, n + 1)));
    }
    let hosts = clients.into_iter().map(|(mut client, data)| {
        std::thread::spawn(move || {
            let mut reader = client.try_clone().unwrap();
            let expected = data.clone();
            let read = std::thread::spawn(move || {
                let mut read = vec![0; LEN];
                reader.read_exact(&mut read).unwrap();
                assert!(read == expected);
            });
            client.write_all(&data).unwrap();
            read.join().unwrap();
        })
    });
    let hosts: Vec<_> = hosts.collect();
    let mut closed = 0;
    while closed < STREAMS {
        let packet = guest.next();
        let (socket, unsent) = sockets
            .iter_mut()
            .find(|(socket, _)| socket.is(&packet))
            .unwrap();
        socket.took(&packet);
        match packet.op() {
            Op::Data => unsent.extend(packet.payload),
            Op::CreditUpdate => {}
            Op::CreditRequest => {
                let update = socket.header(Op::CreditUpdate);
                guest.send(update);
            }
            Op::Shutdown => {
                closed += 1;
                let reset = socket.header(Op::Reset);
                guest.send(reset);
                continue;
            }
            other => panic!("{other:?}"),
        }
        let now: Vec<u8> = unsent.drain(..unsent.len().min(socket.credit())).collect();
        if !now.is_empty() {
            guest.send_data(socket, &now);
        }
    }
    for host in hosts {
        host.join().unwrap();
    }
}

#[test]
fn without_receive_buffers_nothing_spins_and_nothing_is_lost() {
    let mut guest = Guest::frozen();
    let data = pattern(100_000, 8);
    let clients: Vec<_> = (0..50)
        .map(|port| {
            let mut client = guest.client(&format!("CONNECT {port}\n"));
            client.write_all(&data).unwrap();
            client
        })
        .collect();
    guest.settle();
    assert!(!guest.turn(Duration::ZERO));
    guest.post(BUFFERS);
    let mut sockets: Vec<(Socket, Vec<u8>)> = Vec::new();
    let mut done = 0;
    while done < clients.len() {
        let packet = guest.next();
        match packet.op() {
            Op::Request => {
                let mut socket = Socket::new(packet.header.src_port, packet.header.dst_port);
                socket.took(&packet);
                guest.send(socket.header(Op::Response));
                sockets.push((socket, Vec::new()));
            }
            Op::Data | Op::CreditRequest => {
                let (socket, read) = sockets
                    .iter_mut()
                    .find(|(socket, _)| socket.is(&packet))
                    .unwrap();
                socket.took(&packet);
                read.extend(packet.payload);
                if read.len() == data.len() {
                    assert!(*read == data);
                    done += 1;
                }
                let update = socket.header(Op::CreditUpdate);
                guest.send(update);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_closed_port_of_the_guest_can_be_used_again_at_once() {
    let mut guest = Guest::new();
    let listener = guest.listen(52);
    let before = open_descriptors();
    for round in 0..2000 {
        let (mut socket, mut stream) = guest.connect(&listener, 52, 4000);
        guest.send_data(&mut socket, b"x");
        stream.read_exact(&mut [0]).unwrap();
        match round % 4 {
            0 => guest.close(&socket),
            // A killed guest process whose kernel gives up at once.
            1 => guest.send(socket.header(Op::Reset)),
            2 => {
                drop(stream);
                guest.settle();
                guest.received.clear();
                // The guest forgot the connection without confirming.
                continue;
            }
            _ => {
                guest.send(socket.shutdown(SHUTDOWN_SEND));
                drop(stream);
                guest.expect(Op::Shutdown);
                guest.send(socket.header(Op::Reset));
                continue;
            }
        }
        assert_eq!(read_to_end(&stream), b"");
    }
    assert_eq!(open_descriptors(), before);
}

#[test]
fn a_stopped_device_closes_everything_and_starts_again() {
    let mut guest = Guest::new();
    let mut client = guest.client("CONNECT 5\n");
    let mut socket = guest.accept(&mut client);
    guest.send_data(&mut socket, b"before");
    let waiting = guest.client("CONN");
    guest.settle();
    guest.device.stop();
    assert_eq!(read_to_end(&client), b"before");
    assert!(!matches!((&waiting).read(&mut [0; 4]), Ok(1..)));
    guest.device.stop();
    assert!(guest.device.queue_notified(0).is_ok());
}

#[test]
fn the_guest_hears_of_used_buffers() {
    let mut guest = Guest::new();
    let interrupt = guest.interrupt();
    assert_eq!(interrupt.status(), 0);
    guest.send(Socket::new(1, 1).header(Op::Data));
    assert_ne!(interrupt.status(), 0);
}

#[test]
fn types_are_what_the_feature_bit_says() {
    let identity = Guest::new().device.identity();
    assert_eq!((identity.device_id, identity.features), (19, 1));
    assert_eq!(TYPE_STREAM, 1);
    assert_eq!(identity.queue_sizes.len(), 3);
}
