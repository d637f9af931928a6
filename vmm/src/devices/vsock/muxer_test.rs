use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::super::mock_guest::{CID, Socket};
use super::arrivals::MAX_HANDSHAKES;
use super::*;

/// A muxer that serves, and a directory for its sockets.
struct Rig {
    muxer: Muxer,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&dir.path().join("v")).unwrap();
        let mut muxer = Muxer::new(CID, listener).unwrap();
        muxer.start();
        Self { muxer, dir }
    }

    fn client(&mut self, line: &str) -> UnixStream {
        let mut client = UnixStream::connect(self.dir.path().join("v")).unwrap();
        client.write_all(line.as_bytes()).unwrap();
        // Once for the listener, once for the line.
        self.muxer.host_events();
        self.muxer.host_events();
        client.set_nonblocking(true).unwrap();
        client
    }

    /// A client whose connection the guest has accepted.
    fn connected(&mut self, port: u32) -> (Socket, UnixStream) {
        let mut client = self.client(&format!("CONNECT {port}\n"));
        let request = self.expect(Op::Request);
        let socket = Socket::new(request.src_port, port);
        self.send(socket.header(Op::Response));
        let greeting = format!("OK {}\n", socket.host);
        client.read_exact(&mut vec![0; greeting.len()]).unwrap();
        (socket, client)
    }

    fn listen(&self, port: u32) -> UnixListener {
        UnixListener::bind(self.dir.path().join(format!("v_{port}"))).unwrap()
    }

    fn send(&mut self, header: Header) {
        self.muxer.take_packet(&header, &[]);
    }

    fn send_data(&mut self, socket: &Socket, data: &mut [u8]) {
        let header = Header {
            len: data.len() as u32,
            ..socket.header(Op::Data)
        };
        self.muxer
            .take_packet(&header, &[VolatileSlice::from(data)]);
    }

    fn next(&mut self) -> Option<Header> {
        let mut room = [0; 4096];
        self.muxer
            .next_packet(&[VolatileSlice::from(&mut room[..])])
    }

    fn expect(&mut self, op: Op) -> Header {
        let header = self.next().expect("a packet");
        assert_eq!(Op::from_wire(header.op), Some(op), "{header:?}");
        header
    }

    /// A connection from the guest with more data in it than the host's
    /// socket takes, and how much that is.
    fn clogged(&mut self, port: u32) -> (Socket, UnixStream, usize) {
        let listener = self.listen(port);
        let socket = Socket::new(port, 4000);
        self.send(socket.header(Op::Request));
        self.expect(Op::Response);
        let (stream, _) = listener.accept().unwrap();
        let mut sent = 0;
        while !self.muxer.connections[&ports(&socket)].watched_for_room {
            self.send_data(&socket, &mut [1; 65_536]);
            sent += 65_536;
            assert!(sent < 1 << 23, "the socket never fills");
            while self.next().is_some() {}
        }
        (socket, stream, sent)
    }
}

fn ports(socket: &Socket) -> Ports {
    Ports {
        host: socket.host,
        guest: socket.guest,
    }
}

/// Long after everything that has a time limit.
fn much_later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn is_closed(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[test]
fn a_client_without_a_line_is_closed_in_the_end() {
    let mut rig = Rig::new();
    let client = rig.client("CONN");
    rig.muxer.tick(Instant::now());
    assert!(!is_closed(&client));
    rig.muxer.tick(much_later());
    assert!(is_closed(&client));
    assert!(rig.muxer.handshakes.is_empty());
}

#[test]
fn a_guest_that_never_answers_does_not_hold_the_client() {
    let mut rig = Rig::new();
    let client = rig.client("CONNECT 5\n");
    rig.expect(Op::Request);
    rig.muxer.tick(Instant::now());
    assert!(!is_closed(&client));
    rig.muxer.tick(much_later());
    assert!(is_closed(&client));
    assert_eq!(rig.expect(Op::Reset).dst_port, 5);
    // A guest that never heard of the client hears nothing.
    let client = rig.client("CONNECT 6\n");
    rig.muxer.tick(much_later());
    assert!(is_closed(&client));
    assert_eq!(rig.next(), None);
    assert!(rig.muxer.by_token.is_empty());
}

#[test]
fn clients_that_leave_before_the_answer_leave_nothing() {
    let mut rig = Rig::new();
    for _ in 0..1000 {
        drop(rig.client("CONNECT 5\n"));
        let request = rig.next();
        rig.muxer.host_events();
        // Its request went out or not, by chance.
        if request.is_some() {
            rig.expect(Op::Reset);
        }
        assert_eq!(rig.next(), None);
        assert!(rig.muxer.connections.is_empty());
    }
    assert!(rig.muxer.by_token.is_empty());
    assert!(rig.muxer.closing.is_empty());
}

#[test]
fn an_end_that_the_guest_does_not_confirm_is_a_reset_in_the_end() {
    let mut rig = Rig::new();
    let (socket, client) = rig.connected(5);
    drop(client);
    rig.muxer.host_events();
    assert_eq!(rig.expect(Op::Shutdown).flags, SHUTDOWN_BOTH);
    // The stream is closed already, the ports are not free yet.
    assert!(rig.muxer.by_token.is_empty());
    rig.muxer.next_host_port = socket.host;
    assert_ne!(rig.muxer.free_host_port(5), socket.host);
    // The guest may go on reading, and say so.
    rig.send(socket.header(Op::CreditUpdate));
    assert_eq!(rig.next(), None);
    rig.muxer.tick(much_later());
    assert_eq!(rig.expect(Op::Reset).src_port, socket.host);
    assert!(rig.muxer.closing.is_empty());
}

#[test]
fn an_end_may_be_confirmed_with_an_end() {
    let mut rig = Rig::new();
    let (socket, client) = rig.connected(5);
    drop(client);
    rig.muxer.host_events();
    rig.expect(Op::Shutdown);
    rig.send(socket.shutdown(SHUTDOWN_BOTH));
    rig.expect(Op::Reset);
    assert!(rig.muxer.closing.is_empty());
}

#[test]
fn a_late_reset_does_not_hit_the_next_connection_of_the_port() {
    let mut rig = Rig::new();
    let socket = Socket::new(52, 4000);
    rig.send(socket.header(Op::Request));
    // The refusal still waits when the guest tries again, and now there is
    // somebody.
    let _listener = rig.listen(52);
    rig.send(socket.header(Op::Request));
    rig.expect(Op::Response);
    assert_eq!(rig.next(), None);
}

#[test]
fn what_a_closed_connection_left_goes_to_the_host_and_the_port_is_free() {
    let mut rig = Rig::new();
    let (socket, mut stream, sent) = rig.clogged(52);
    rig.send(socket.shutdown(SHUTDOWN_BOTH));
    rig.expect(Op::Reset);
    assert!(rig.muxer.connections.is_empty());
    assert_eq!(rig.muxer.orphans.len(), 1);
    rig.muxer.tick(Instant::now());
    stream.set_nonblocking(true).unwrap();
    let mut read = 0;
    while !rig.muxer.orphans.is_empty() {
        match stream.read(&mut [0; 65_536]) {
            Ok(len) => read += len,
            Err(_) => rig.muxer.host_events(),
        }
    }
    stream.set_nonblocking(false).unwrap();
    read += stream.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(read, sent);
}

#[test]
fn a_host_that_never_reads_what_was_left_gives_it_up() {
    let mut rig = Rig::new();
    let (socket, _stream, _) = rig.clogged(52);
    rig.send(socket.header(Op::Reset));
    assert_eq!(rig.muxer.orphans.len(), 1);
    rig.muxer.tick(much_later());
    assert!(rig.muxer.orphans.is_empty());
    assert_eq!(rig.next(), None);
}

#[test]
fn past_the_limit_newcomers_are_refused_and_leftovers_give_way() {
    let mut rig = Rig::new();
    rig.muxer.max_streams = 2;
    let (socket, _stream, _) = rig.clogged(52);
    let waiting = rig.client("");
    let refused = rig.client("CONNECT 5\n");
    assert!(is_closed(&refused));
    let _listener = rig.listen(53);
    rig.send(Socket::new(53, 1).header(Op::Request));
    rig.expect(Op::Reset);
    assert!(!is_closed(&waiting));

    rig.send(socket.header(Op::Reset));
    rig.send(Socket::new(53, 1).header(Op::Request));
    rig.expect(Op::Response);
    assert!(rig.muxer.orphans.is_empty());
}

#[test]
fn silent_clients_give_way_to_newer_ones() {
    let mut rig = Rig::new();
    let oldest = rig.client("");
    let others: Vec<_> = (0..MAX_HANDSHAKES).map(|_| rig.client("")).collect();
    assert!(is_closed(&oldest));
    assert!(others.iter().all(|client| !is_closed(client)));
    assert_eq!(rig.muxer.handshakes.len(), MAX_HANDSHAKES);
}

#[test]
fn a_guest_that_never_receives_cannot_fill_the_hosts_memory() {
    let mut rig = Rig::new();
    let _listener = rig.listen(52);
    for port in 0..2 * MAX_RESETS as u32 {
        // A reset for nothing, and a connection that comes and goes.
        rig.send(Socket::new(1, port).header(Op::Data));
        rig.send(Socket::new(52, 4000).header(Op::Request));
        rig.send(Socket::new(52, 4000).header(Op::Reset));
    }
    assert_eq!(rig.muxer.resets.len(), MAX_RESETS);
    assert!(rig.muxer.ready.len() <= 1);
    assert!(rig.muxer.connections.is_empty());
}

#[test]
fn host_ports_go_round() {
    let mut rig = Rig::new();
    rig.muxer.next_host_port = *HOST_PORTS.end();
    assert_eq!(rig.muxer.free_host_port(1), *HOST_PORTS.end());
    assert_eq!(rig.muxer.free_host_port(1), *HOST_PORTS.start());
    let taken = Ports {
        host: *HOST_PORTS.start() + 1,
        guest: 1,
    };
    rig.muxer.closing.insert(taken, Instant::now());
    assert_eq!(rig.muxer.free_host_port(1), *HOST_PORTS.start() + 2);
    rig.muxer.next_host_port = *HOST_PORTS.start() + 1;
    assert_eq!(rig.muxer.free_host_port(2), *HOST_PORTS.start() + 1);
}

#[test]
fn connections_take_turns() {
    let mut rig = Rig::new();
    let mut clients: Vec<_> = (0..3).map(|port| rig.connected(port)).collect();
    while rig.next().is_some() {}
    for (_, client) in &mut clients {
        client.write_all(&[1; 20_000]).unwrap();
    }
    rig.muxer.host_events();
    let order: Vec<_> = (0..6).map(|_| rig.expect(Op::Data).dst_port).collect();
    let mut firsts = order[..3].to_vec();
    firsts.sort_unstable();
    assert_eq!(firsts, [0, 1, 2]);
    assert_eq!(order[..3], order[3..]);
}
