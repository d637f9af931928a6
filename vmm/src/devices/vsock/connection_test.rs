use super::super::credit::BUF_ALLOC;
use super::super::fake_stream::FakeStream;
use super::*;

/// The guest's buffer in these tests.
const GUEST_BUFFER: u32 = 10_000;

struct Rig {
    stream: FakeStream,
    connection: Connection<FakeStream>,
    /// What the guest has read so far.
    taken: u32,
}

/// What a packet to the guest was, with its payload.
type Seen = (Op, u32, Vec<u8>);

impl Rig {
    fn new(connection: impl FnOnce(FakeStream) -> Connection<FakeStream>) -> Self {
        let stream = FakeStream::with_room(usize::MAX);
        Self {
            connection: connection(stream.clone()),
            stream,
            taken: 0,
        }
    }

    /// A connection that the guest asked for.
    fn answering() -> Self {
        let request = Header {
            buf_alloc: GUEST_BUFFER,
            ..Header::default()
        };
        Self::new(|stream| Connection::from_guest(stream, &request))
    }

    /// The same, open.
    fn open() -> Self {
        let mut rig = Self::answering();
        assert_eq!(rig.next(), Some((Op::Response, 0, vec![])));
        rig
    }

    /// A connection that the host asked for and the guest knows of.
    fn asked() -> Self {
        let mut rig = Self::new(|stream| Connection::from_host(stream, Instant::now()));
        assert_eq!(rig.next(), Some((Op::Request, 0, vec![])));
        rig
    }

    /// The next packet to the guest.
    fn next(&mut self) -> Option<Seen> {
        if !self.connection.has_packet() {
            return None;
        }
        let mut room = [0; 4096];
        let packet = self
            .connection
            .next(&[VolatileSlice::from(&mut room[..])])?;
        let payload = room[..packet.len as usize].to_vec();
        Some((packet.op, packet.flags, payload))
    }

    fn guest(&mut self, op: Op) {
        self.guest_packet(op, 0, &[]);
    }

    fn guest_packet(&mut self, op: Op, flags: u32, payload: &[u8]) {
        let header = Header {
            len: payload.len() as u32,
            flags,
            buf_alloc: GUEST_BUFFER,
            fwd_cnt: self.taken,
            ..Header::default()
        };
        let mut payload = payload.to_vec();
        let slices = [VolatileSlice::from(&mut payload[..])];
        self.connection
            .packet(op, &header, &slices, || "OK 7\n".into());
    }

    fn host_sends(&mut self, data: &[u8]) {
        self.stream.0.borrow_mut().incoming.extend(data);
        self.connection.readable();
    }

    fn host_ends(&mut self) {
        self.stream.0.borrow_mut().ended = true;
        self.connection.readable();
    }

    fn host_closes(&mut self) {
        self.host_ends();
        self.stream.0.borrow_mut().broken = true;
        self.connection.hung_up();
    }

    /// Lets the host take `len` bytes more.
    fn host_takes(&mut self, len: usize) {
        self.stream.0.borrow_mut().room = len;
        self.connection.has_room();
    }

    fn sent(&self) -> Vec<u8> {
        self.stream.0.borrow().sent.clone()
    }
}

#[test]
fn the_response_comes_before_everything_else() {
    let mut rig = Rig::answering();
    rig.host_sends(b"hello");
    rig.host_ends();
    assert_eq!(rig.next(), Some((Op::Response, 0, vec![])));
    assert_eq!(rig.next(), Some((Op::Data, 0, b"hello".to_vec())));
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_SEND, vec![])));
    assert_eq!(rig.next(), None);
}

#[test]
fn the_client_reads_the_greeting_first_and_only_once_the_guest_accepted() {
    let mut rig = Rig::asked();
    rig.host_sends(b"early");
    assert_eq!(rig.next(), None);
    assert_eq!(rig.sent(), b"");
    rig.guest(Op::Response);
    assert_eq!(rig.sent(), b"OK 7\n");
    assert_eq!(rig.next(), Some((Op::Data, 0, b"early".to_vec())));
    rig.guest_packet(Op::Data, 0, b"answer");
    assert_eq!(rig.sent(), b"OK 7\nanswer");
}

#[test]
fn a_refused_client_reads_nothing() {
    let mut rig = Rig::asked();
    rig.guest(Op::Reset);
    assert_eq!(rig.connection.fate(), Fate::Over { answer: false });
    assert_eq!(rig.sent(), b"");
}

#[test]
fn a_client_that_leaves_before_the_answer_is_forgotten() {
    let mut rig = Rig::asked();
    rig.host_closes();
    assert_eq!(rig.connection.fate(), Fate::Reset);

    let mut rig = Rig::new(|stream| Connection::from_host(stream, Instant::now()));
    rig.host_closes();
    assert_eq!(rig.connection.fate(), Fate::Over { answer: false });
}

#[test]
fn what_a_client_sent_before_it_left_still_arrives() {
    let mut rig = Rig::asked();
    rig.host_sends(b"fire and forget");
    rig.host_closes();
    rig.guest(Op::Response);
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_RECEIVE, vec![])));
    assert_eq!(rig.next(), Some((Op::Data, 0, b"fire and forget".to_vec())));
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_BOTH, vec![])));
    assert_eq!(rig.connection.fate(), Fate::Told);
}

#[test]
fn the_guest_is_never_sent_more_than_it_has_room_for() {
    let mut rig = Rig::open();
    rig.host_sends(&[1; 25_000]);
    let mut received = 0;
    while let Some((Op::Data, _, data)) = rig.next() {
        received += data.len();
    }
    assert_eq!(received, GUEST_BUFFER as usize);
    // The loop above ended with the one question that a stopped sender asks.
    assert_eq!(rig.next(), None);
    rig.taken = 4000;
    rig.guest(Op::CreditUpdate);
    assert_eq!(rig.next().map(|packet| packet.2.len()), Some(4000));
    assert_eq!(rig.next(), Some((Op::CreditRequest, 0, vec![])));
    assert_eq!(rig.next(), None);
}

#[test]
fn bytes_that_the_host_does_not_take_are_kept_and_credit_follows_them() {
    let mut rig = Rig::open();
    rig.stream.0.borrow_mut().room = 1000;
    let data: Vec<u8> = (0..BUF_ALLOC + 1000).map(|at| (at % 251) as u8).collect();
    for part in data.chunks(64 * 1024) {
        rig.guest_packet(Op::Data, 0, part);
    }
    assert_eq!(rig.connection.fate(), Fate::Live);
    assert!(rig.connection.wants_room());
    assert_eq!(rig.next(), None);
    rig.host_takes(BUF_ALLOC as usize / 2 - 1001);
    assert_eq!(rig.next(), None);
    rig.host_takes(1);
    assert_eq!(rig.next(), Some((Op::CreditUpdate, 0, vec![])));
    assert_eq!(rig.next(), None);
    rig.host_takes(usize::MAX);
    assert!(!rig.connection.wants_room());
    assert!(rig.sent() == data);
}

#[test]
fn a_guest_that_sends_more_than_its_credit_is_cut_off() {
    let mut rig = Rig::open();
    rig.stream.0.borrow_mut().room = 0;
    rig.guest_packet(Op::Data, 0, &vec![0; BUF_ALLOC as usize]);
    assert_eq!(rig.connection.fate(), Fate::Live);
    rig.guest_packet(Op::Data, 0, &[0]);
    assert!(matches!(rig.connection.fate(), Fate::Misbehaved(_)));
}

#[test]
fn a_guest_that_lies_about_what_it_read_is_cut_off() {
    let mut rig = Rig::open();
    rig.taken = 1;
    rig.guest(Op::CreditUpdate);
    assert!(matches!(rig.connection.fate(), Fate::Misbehaved(_)));
}

#[test]
fn a_packet_shorter_than_its_header_says_is_an_offence() {
    let mut rig = Rig::open();
    let header = Header {
        len: 5,
        buf_alloc: GUEST_BUFFER,
        ..Header::default()
    };
    let mut payload = [0; 4];
    let slices = [VolatileSlice::from(&mut payload[..])];
    rig.connection
        .packet(Op::Data, &header, &slices, String::new);
    assert!(matches!(rig.connection.fate(), Fate::Misbehaved(_)));
}

#[test]
fn a_credit_request_is_answered() {
    let mut rig = Rig::open();
    rig.guest(Op::CreditRequest);
    assert_eq!(rig.next(), Some((Op::CreditUpdate, 0, vec![])));
    assert_eq!(rig.next(), None);
}

#[test]
fn talk_of_credit_before_the_connection_stands_is_harmless() {
    for op in [Op::CreditRequest, Op::CreditUpdate] {
        let mut rig = Rig::answering();
        rig.guest(op);
        assert_eq!(rig.next(), Some((Op::Response, 0, vec![])));
        assert_eq!(rig.connection.fate(), Fate::Live);
    }
}

#[test]
fn packets_out_of_place_end_the_connection() {
    for op in [Op::Request, Op::Response] {
        let mut rig = Rig::open();
        rig.guest(op);
        assert!(
            matches!(rig.connection.fate(), Fate::Misbehaved(_)),
            "{op:?}"
        );
    }
    for op in [Op::Request, Op::Data, Op::Shutdown] {
        let mut rig = Rig::asked();
        rig.guest(op);
        assert!(
            matches!(rig.connection.fate(), Fate::Misbehaved(_)),
            "{op:?}"
        );
    }
}

#[test]
fn a_guest_that_ended_its_half_still_receives() {
    let mut rig = Rig::open();
    rig.stream.0.borrow_mut().room = 3;
    rig.guest_packet(Op::Data, 0, b"last words");
    rig.guest_packet(Op::Shutdown, SHUTDOWN_SEND, &[]);
    // Not before the backlog has gone.
    assert!(rig.stream.0.borrow().ends.is_empty());
    rig.host_takes(usize::MAX);
    assert_eq!(rig.sent(), b"last words");
    assert_eq!(rig.stream.0.borrow().ends, [Shutdown::Write]);

    rig.host_sends(b"still here");
    assert_eq!(rig.next(), Some((Op::Data, 0, b"still here".to_vec())));
    rig.host_ends();
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_SEND, vec![])));
    assert_eq!(rig.connection.fate(), Fate::Live);
}

#[test]
fn a_host_that_ended_its_half_still_receives() {
    let mut rig = Rig::open();
    rig.host_ends();
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_SEND, vec![])));
    rig.guest_packet(Op::Data, 0, b"more");
    assert_eq!(rig.sent(), b"more");
    rig.host_closes();
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_BOTH, vec![])));
    assert_eq!(rig.connection.fate(), Fate::Told);
}

#[test]
fn a_guest_that_receives_no_more_stops_the_host() {
    let mut rig = Rig::open();
    rig.guest_packet(Op::Shutdown, SHUTDOWN_RECEIVE, &[]);
    assert_eq!(rig.stream.0.borrow().ends, [Shutdown::Read]);
    rig.host_sends(b"in vain");
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_SEND, vec![])));
    assert_eq!(rig.next(), None);
    rig.guest_packet(Op::Data, 0, b"the other way");
    assert_eq!(rig.sent(), b"the other way");
}

#[test]
fn a_guest_that_closes_is_answered_and_its_last_bytes_kept() {
    let mut rig = Rig::open();
    rig.stream.0.borrow_mut().room = 0;
    rig.guest_packet(Op::Data, 0, b"tail");
    rig.guest_packet(Op::Shutdown, SHUTDOWN_RECEIVE, &[]);
    rig.guest_packet(Op::Shutdown, SHUTDOWN_SEND, &[]);
    assert_eq!(rig.connection.fate(), Fate::Over { answer: true });
    let (stream, mut backlog) = rig.connection.into_parts();
    stream.0.borrow_mut().room = 10;
    backlog.flush(&stream).unwrap();
    assert_eq!(stream.0.borrow().sent, b"tail");
}

#[test]
fn data_after_the_guests_end_is_an_offence() {
    let mut rig = Rig::open();
    rig.guest_packet(Op::Shutdown, SHUTDOWN_SEND, &[]);
    rig.guest_packet(Op::Data, 0, b"x");
    assert!(matches!(rig.connection.fate(), Fate::Misbehaved(_)));
}

#[test]
fn a_host_that_reads_no_more_does_not_stop_the_guest_for_good() {
    let mut rig = Rig::open();
    rig.stream.0.borrow_mut().room = 0;
    rig.guest_packet(Op::Data, 0, &vec![0; BUF_ALLOC as usize]);
    rig.stream.0.borrow_mut().broken = true;
    rig.connection.has_room();
    assert!(!rig.connection.wants_room());
    // Its credit is back, and it hears that nobody reads.
    assert_eq!(rig.next(), Some((Op::CreditUpdate, 0, vec![])));
    assert_eq!(rig.next(), Some((Op::Shutdown, SHUTDOWN_RECEIVE, vec![])));
    rig.guest_packet(Op::Data, 0, &[0; 100]);
    assert_eq!(rig.connection.fate(), Fate::Live);
}

#[test]
fn only_a_connection_without_an_answer_has_a_deadline() {
    let mut rig = Rig::asked();
    assert!(rig.connection.deadline().is_some());
    rig.guest(Op::Response);
    assert_eq!(rig.connection.deadline(), None);
    assert_eq!(Rig::open().connection.deadline(), None);

    let mut rig = Rig::asked();
    rig.connection.give_up();
    assert_eq!(rig.connection.fate(), Fate::Reset);
}
