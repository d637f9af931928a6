use super::super::fake_stream::FakeStream;
use super::*;

fn client(sent: &[u8]) -> (FakeStream, Handshake<FakeStream>) {
    let stream = FakeStream::default();
    stream.0.borrow_mut().incoming = sent.to_vec();
    (stream.clone(), Handshake::new(stream, Instant::now()))
}

#[test]
fn lines_are_understood_as_clients_write_them() {
    for (line, port) in [
        (&b"CONNECT 52\n"[..], Some(52)),
        (b"connect 52\r\n", Some(52)),
        (b"CONNECT  0\n", Some(0)),
        (b"CONNECT 4294967295\n", Some(u32::MAX)),
        (b"CONNECT 4294967296\n", None),
        (b"CONNECT -1\n", None),
        (b"CONNECT +1\n", None),
        (b"CONNECT\n", None),
        (b"CONNECT 1 2\n", None),
        (b"CONNECT52\n", None),
        (b"GET / HTTP/1.1\n", None),
        (b"\n", None),
        (b"\xff\xfe\x00 7\n", None),
    ] {
        assert_eq!(parse(line), port, "{}", line.escape_ascii());
    }
}

#[test]
fn a_line_may_come_in_pieces() {
    let (stream, mut handshake) = client(b"");
    for byte in b"CONNECT 1024" {
        stream.0.borrow_mut().incoming.push(*byte);
        assert_eq!(handshake.advance(), Progress::Waiting);
    }
    stream.0.borrow_mut().incoming.push(b'\n');
    assert_eq!(handshake.advance(), Progress::Port(1024));
}

#[test]
fn what_follows_the_line_stays_in_the_socket() {
    let (stream, mut handshake) = client(b"CONNECT 5\nCONNECT 6\npayload");
    assert_eq!(handshake.advance(), Progress::Port(5));
    assert_eq!(stream.0.borrow().incoming, b"CONNECT 6\npayload");
}

#[test]
fn a_line_that_does_not_end_is_refused_early() {
    let (_, mut handshake) = client(&[b'7'; 10_000]);
    assert_eq!(handshake.advance(), Progress::Refused);
    let (_, mut handshake) = client(b"CONNECT                        5\n");
    assert_eq!(handshake.advance(), Progress::Refused);
}

#[test]
fn a_client_that_leaves_is_refused() {
    let (stream, mut handshake) = client(b"CONNE");
    stream.0.borrow_mut().ended = true;
    assert_eq!(handshake.advance(), Progress::Refused);
}
