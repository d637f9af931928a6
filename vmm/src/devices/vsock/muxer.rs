//! All connections of the device: which packet and which socket event belongs
//! to which, and who may send next.

mod arrivals;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use vm_memory::VolatileSlice;

use super::connection::{Connection, Fate, Outgoing};
use super::credit::BUF_ALLOC;
use super::endings::{Closing, Orphans};
use super::handshake::Handshake;
use super::packet::{HOST_CID, Header, Op, SHUTDOWN_BOTH, TYPE_STREAM};
use super::watch::{Event, Token, Watch};
use crate::backends::unix::{Listener, Stream};

/// Resets that wait for receive buffers of the guest. A guest that provokes
/// more without reading any does not get all of them.
const MAX_RESETS: usize = 1024;
/// The host's ports of connections that the host asks for. Guests connect to
/// ports that people choose, which are far lower.
pub const HOST_PORTS: RangeInclusive<u32> = 1 << 30..=u32::MAX >> 1;

/// What names a connection: the guest has one address and the host another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The host's port.
    pub host: u32,
    /// The guest's port.
    pub guest: u32,
}

/// A connection in the table.
struct Slot {
    connection: Connection<Stream>,
    token: Token,
    /// It is in the line of those that may send.
    queued: bool,
    /// Its stream is watched for room.
    watched_for_room: bool,
}

/// Whether packets go to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// None before somebody opens the gate.
    Shut,
    /// None before somebody opens the gate, or this time has come.
    ShutUntil(Instant),
}

/// See the module's description.
pub struct Muxer {
    guest_cid: u64,
    listener: Listener,
    /// No clients are accepted for want of descriptors, until the next tick.
    out_of_descriptors: bool,
    watch: Watch,
    /// A driver runs.
    serving: bool,
    gate: Gate,
    connections: HashMap<Ports, Slot>,
    /// The connection of each watched stream that has one.
    by_token: HashMap<Token, Ports>,
    handshakes: BTreeMap<Token, Handshake<Stream>>,
    orphans: Orphans,
    closing: Closing,
    /// Connections that have a packet for the guest. One packet, then to the
    /// end of the line: that is what makes it fair.
    ready: VecDeque<Ports>,
    /// Resets for packets and connections that there is nothing else of.
    resets: VecDeque<Header>,
    next_host_port: u32,
    max_streams: usize,
    complaints: u64,
}

impl Muxer {
    /// No connections yet, and none accepted before [`Muxer::start`].
    ///
    /// # Errors
    /// The host is out of descriptors or memory.
    pub fn new(guest_cid: u32, listener: Listener) -> io::Result<Self> {
        Ok(Self {
            guest_cid: guest_cid.into(),
            watch: Watch::new(listener.as_fd())?,
            listener,
            out_of_descriptors: false,
            serving: false,
            gate: Gate::Open,
            connections: HashMap::new(),
            by_token: HashMap::new(),
            handshakes: BTreeMap::new(),
            orphans: Orphans::default(),
            closing: Closing::default(),
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            next_host_port: *HOST_PORTS.start(),
            max_streams: arrivals::MAX_STREAMS,
            complaints: 0,
        })
    }

    /// The descriptor to watch for input.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// A driver runs: clients are served.
    pub fn start(&mut self) {
        self.serving = true;
    }

    /// The driver is gone and with it the guest's side of every connection.
    /// What it had sent before still goes to the host.
    pub fn stop(&mut self) {
        self.serving = false;
        self.gate = Gate::Open;
        let gone: Vec<_> = self.connections.keys().copied().collect();
        for ports in gone {
            let slot = self.remove(ports);
            self.leave_orphan(slot);
        }
        self.handshakes.clear();
        self.closing.clear();
        self.resets.clear();
    }

    /// Keeps packets from the guest until [`Muxer::open_gate`]. Connections come
    /// about all the same, and wait.
    pub fn shut_gate(&mut self) {
        self.gate = Gate::Shut;
    }

    /// Opens a gate that was shut at `until`, unless it has a time already.
    pub fn limit_gate(&mut self, until: Instant) {
        if self.gate == Gate::Shut {
            self.gate = Gate::ShutUntil(until);
            self.watch.tick();
        }
    }

    /// Lets packets go to the guest.
    pub fn open_gate(&mut self) {
        self.gate = Gate::Open;
    }

    /// The host's port of the next connection that a host asks for.
    pub fn next_host_port(&self) -> u32 {
        self.next_host_port
    }

    /// Sets the host's port of the next connection that a host asks for, one of
    /// [`HOST_PORTS`].
    pub fn set_next_host_port(&mut self, port: u32) {
        self.next_host_port = port;
    }

    /// Calls the event loop back at once, for work that was put off.
    pub fn ring(&self) {
        self.watch.ring();
    }

    /// The guest broke a rule. Counted, and logged ever more rarely, so that a
    /// guest cannot fill the host's disk with it.
    pub fn complain(&mut self, rule: &str) {
        self.complaints += 1;
        if self.complaints.is_power_of_two() {
            let times = self.complaints;
            log::warn!("vsock: the guest broke a rule: {rule} (offence {times})");
        }
    }

    /// Attends to what happened on the host.
    pub fn host_events(&mut self) {
        for event in self.watch.events() {
            match event {
                Event::Listener => self.accept(),
                Event::Tick => self.tick(Instant::now()),
                // Whoever rang is called after every event anyway.
                Event::Bell => {}
                Event::Stream {
                    token,
                    readable,
                    has_room,
                    hung_up,
                } => {
                    if let Some(&ports) = self.by_token.get(&token) {
                        let connection = &mut self.slot(ports).connection;
                        if readable {
                            connection.readable();
                        }
                        if hung_up {
                            connection.hung_up();
                        }
                        if has_room {
                            connection.has_room();
                        }
                        self.settle(ports);
                    } else if self.orphans.has(token) {
                        self.orphans.flush(token, Instant::now());
                    } else {
                        self.advance(token, hung_up);
                    }
                }
            }
        }
    }

    /// Takes in a packet of the guest.
    pub fn take_packet(&mut self, header: &Header, payload: &[VolatileSlice<'_>]) {
        if header.src_cid != self.guest_cid {
            self.complain("a packet does not come from the guest's own address");
            return;
        }
        let ports = Ports {
            host: header.dst_port,
            guest: header.src_port,
        };
        let op = Op::from_wire(header.op);
        let served = header.dst_cid == HOST_CID && header.kind == TYPE_STREAM;
        match op {
            Some(op) if served => self.served_packet(op, ports, header, payload),
            // Never a reset for a reset, or two sides could go on for ever.
            Some(Op::Reset) => {}
            _ => self.push_reset(header.dst_cid, header.kind, ports),
        }
    }

    fn served_packet(
        &mut self,
        op: Op,
        ports: Ports,
        header: &Header,
        payload: &[VolatileSlice<'_>],
    ) {
        if matches!(op, Op::Request | Op::Reset) {
            // A reset that was meant for the guest's last connection from this
            // port must not hit its next.
            self.resets
                .retain(|reset| (reset.src_port, reset.dst_port) != (ports.host, ports.guest));
        }
        if let Some(slot) = self.connections.get_mut(&ports) {
            let greeting = || format!("OK {}\n", ports.host);
            slot.connection.packet(op, header, payload, greeting);
            self.settle(ports);
            return;
        }
        let closing = self.closing.has(ports);
        match op {
            Op::Request => {
                self.closing.remove(ports);
                self.connect_to_host(ports, header);
            }
            Op::Reset => self.closing.remove(ports),
            Op::Shutdown if closing && header.flags & SHUTDOWN_BOTH == SHUTDOWN_BOTH => {
                self.closing.remove(ports);
                self.push_reset(HOST_CID, TYPE_STREAM, ports);
            }
            _ if closing => self.closing.postpone(ports, Instant::now()),
            _ => self.push_reset(HOST_CID, TYPE_STREAM, ports),
        }
    }

    /// Whether [`Muxer::next_packet`] may have a packet.
    pub fn has_packet(&self) -> bool {
        self.gate == Gate::Open && (!self.resets.is_empty() || !self.ready.is_empty())
    }

    /// The next packet for the guest, its payload already in `room`, which is
    /// not empty.
    pub fn next_packet(&mut self, room: &[VolatileSlice<'_>]) -> Option<Header> {
        loop {
            if let Some(reset) = self.resets.pop_front() {
                return Some(reset);
            }
            let ports = self.ready.pop_front()?;
            let slot = self.slot(ports);
            slot.queued = false;
            let packet = slot.connection.next(room);
            self.settle(ports);
            if let Some(packet) = packet {
                return Some(self.header(ports, packet));
            }
        }
    }

    fn header(&self, ports: Ports, packet: Outgoing) -> Header {
        Header {
            src_cid: HOST_CID,
            dst_cid: self.guest_cid,
            src_port: ports.host,
            dst_port: ports.guest,
            len: packet.len,
            kind: TYPE_STREAM,
            op: packet.op as u16,
            flags: packet.flags,
            buf_alloc: BUF_ALLOC,
            fwd_cnt: packet.fwd_cnt,
        }
    }

    /// Tells the guest that there is no connection between `ports`, or not any
    /// more.
    fn push_reset(&mut self, src_cid: u64, kind: u16, ports: Ports) {
        if self.resets.len() == MAX_RESETS {
            self.complain("it provokes resets without ever receiving one");
            return;
        }
        self.resets.push_back(Header {
            src_cid,
            dst_cid: self.guest_cid,
            src_port: ports.host,
            dst_port: ports.guest,
            kind,
            op: Op::Reset as u16,
            ..Header::default()
        });
    }

    /// Draws the consequences of whatever has just happened to a connection.
    fn settle(&mut self, ports: Ports) {
        let slot = self.slot(ports);
        match slot.connection.fate() {
            Fate::Live => {
                let wants_room = slot.connection.wants_room();
                let room_changed = wants_room != slot.watched_for_room;
                slot.watched_for_room = wants_room;
                let newly_ready = slot.connection.has_packet() && !slot.queued;
                slot.queued |= newly_ready;
                if newly_ready {
                    self.ready.push_back(ports);
                }
                if room_changed {
                    let slot = &self.connections[&ports];
                    let stream = slot.connection.stream().as_fd();
                    self.watch.want_room(stream, slot.token, wants_room);
                }
            }
            Fate::Reset => {
                self.remove(ports);
                self.push_reset(HOST_CID, TYPE_STREAM, ports);
            }
            Fate::Misbehaved(rule) => {
                self.complain(rule);
                self.remove(ports);
                self.push_reset(HOST_CID, TYPE_STREAM, ports);
            }
            Fate::Over { answer } => {
                let slot = self.remove(ports);
                self.leave_orphan(slot);
                if answer {
                    self.push_reset(HOST_CID, TYPE_STREAM, ports);
                }
            }
            Fate::Told => {
                self.remove(ports);
                if self.closing.insert(ports, Instant::now()) {
                    self.watch.tick();
                } else {
                    self.push_reset(HOST_CID, TYPE_STREAM, ports);
                }
            }
        }
    }

    fn slot(&mut self, ports: Ports) -> &mut Slot {
        self.connections
            .get_mut(&ports)
            .expect("tokens and the line name only connections of the table")
    }

    fn insert(&mut self, ports: Ports, token: Token, connection: Connection<Stream>) {
        let slot = Slot {
            connection,
            token,
            queued: false,
            watched_for_room: false,
        };
        self.connections.insert(ports, slot);
        self.by_token.insert(token, ports);
        self.settle(ports);
    }

    fn remove(&mut self, ports: Ports) -> Slot {
        let slot = self
            .connections
            .remove(&ports)
            .expect("only connections of the table end");
        self.by_token.remove(&slot.token);
        if slot.queued {
            self.ready.retain(|&waiting| waiting != ports);
        }
        slot
    }

    /// Keeps what is left of a connection that the guest has closed until the
    /// host has taken all that the guest sent.
    fn leave_orphan(&mut self, slot: Slot) {
        let (stream, backlog) = slot.connection.into_parts();
        if backlog.is_empty() {
            return;
        }
        self.watch.want_room(stream.as_fd(), slot.token, true);
        self.watch.tick();
        self.orphans
            .adopt(slot.token, stream, backlog, Instant::now());
    }

    /// Gives up on everything whose time is up at `now`.
    pub fn tick(&mut self, now: Instant) {
        self.handshakes.retain(|_, client| now < client.deadline);
        self.orphans.tick(now);
        for ports in self.closing.tick(now) {
            self.push_reset(HOST_CID, TYPE_STREAM, ports);
        }
        if matches!(self.gate, Gate::ShutUntil(until) if until <= now) {
            self.gate = Gate::Open;
        }
        let unanswered: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, slot)| slot.connection.deadline().is_some_and(|until| until <= now))
            .map(|(&ports, _)| ports)
            .collect();
        for ports in unanswered {
            self.slot(ports).connection.give_up();
            self.settle(ports);
        }
        if std::mem::take(&mut self.out_of_descriptors) {
            self.watch.want_clients(self.listener.as_fd(), true);
        }
        let asking = |slot: &Slot| slot.connection.deadline().is_some();
        if !self.handshakes.is_empty()
            || !self.orphans.is_empty()
            || !self.closing.is_empty()
            || matches!(self.gate, Gate::ShutUntil(_))
            || self.connections.values().any(asking)
        {
            self.watch.tick();
        }
    }
}

#[cfg(test)]
#[path = "muxer_test.rs"]
mod tests;
