//! A guest with just enough of a driver to talk to the device over real
//! virtqueues, and the host's programs around it.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::device::Vsock;
use super::packet::{HOST_CID, Header, Op, SHUTDOWN_BOTH, TYPE_STREAM};
use crate::memory::GuestMemory;
use crate::spec::VsockConfig;
use crate::virtio::mock_driver::{self, Descriptor, MockDriver, Used};
use crate::virtio::{Interrupt, VirtioDevice as _, Virtqueue};

pub const CID: u32 = 7;
/// Receive buffers, and their size: what Linux posts.
pub const BUFFERS: usize = 64;
const BUFFER_LEN: usize = 4096;
/// Size of the event queue.
const EVENT_QUEUE: u16 = 16;
/// How much each of the guest's sockets takes ahead of its program.
pub const GUEST_BUFFER: u32 = 64 * 1024;

/// A packet from the device.
pub struct Packet {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn op(&self) -> Op {
        Op::from_wire(self.header.op).expect("the device sends known operations")
    }
}

/// One of the guest's sockets: its addresses and its side of the credit.
#[derive(Clone, Debug)]
pub struct Socket {
    pub host: u32,
    pub guest: u32,
    /// Bytes received and taken by the program.
    pub taken: u32,
    pub sent: u32,
    /// What the device last said.
    pub peer_taken: u32,
    pub peer_buffer: u32,
}

impl Socket {
    pub fn new(host: u32, guest: u32) -> Self {
        Self {
            host,
            guest,
            taken: 0,
            sent: 0,
            peer_taken: 0,
            peer_buffer: 0,
        }
    }

    pub fn header(&self, op: Op) -> Header {
        Header {
            src_cid: CID.into(),
            dst_cid: HOST_CID,
            src_port: self.guest,
            dst_port: self.host,
            len: 0,
            kind: TYPE_STREAM,
            op: op as u16,
            flags: 0,
            buf_alloc: GUEST_BUFFER,
            fwd_cnt: self.taken,
        }
    }

    pub fn shutdown(&self, flags: u32) -> Header {
        Header {
            flags,
            ..self.header(Op::Shutdown)
        }
    }

    /// Takes the credit that `packet` grants, and counts its payload as read.
    pub fn took(&mut self, packet: &Packet) {
        self.peer_taken = packet.header.fwd_cnt;
        self.peer_buffer = packet.header.buf_alloc;
        self.taken = self.taken.wrapping_add(packet.header.len);
    }

    pub fn credit(&self) -> usize {
        (self.peer_buffer - self.sent.wrapping_sub(self.peer_taken)) as usize
    }

    pub fn is(&self, packet: &Packet) -> bool {
        (packet.header.src_port, packet.header.dst_port) == (self.host, self.guest)
    }
}

/// The guest, the device and a directory for its sockets.
pub struct Guest {
    pub device: Vsock,
    pub receive: MockDriver,
    pub transmit: MockDriver,
    pub event: MockDriver,
    memory: GuestMemory,
    /// Address of each receive buffer.
    buffers: Vec<u64>,
    posted: usize,
    interrupt: Arc<Interrupt>,
    pub received: VecDeque<Packet>,
    dir: tempfile::TempDir,
}

impl Guest {
    /// A guest that has posted all its receive buffers.
    pub fn new() -> Self {
        let mut guest = Self::frozen();
        guest.post(BUFFERS);
        guest
    }

    /// A guest that has posted no receive buffers.
    pub fn frozen() -> Self {
        let memory = mock_driver::guest_memory();
        let dir = tempfile::tempdir().unwrap();
        let config = VsockConfig {
            guest_cid: CID,
            uds_path: dir.path().join("v.sock"),
            vsock_id: None,
        };
        let mut receive = MockDriver::new(&memory, 0, BUFFERS as u16);
        let buffers = (0..BUFFERS).map(|_| receive.alloc(BUFFER_LEN)).collect();
        let transmit = MockDriver::new(&memory, 1, 64);
        let event = MockDriver::new(&memory, 2, EVENT_QUEUE);
        let env = mock_driver::env(&memory, &[&receive, &transmit, &event], 1);
        let interrupt = Arc::clone(&env.interrupt);
        let mut device = Vsock::new(&config).unwrap();
        device.start(env).unwrap();
        Self {
            device,
            receive,
            transmit,
            event,
            memory,
            buffers,
            posted: 0,
            interrupt,
            received: VecDeque::new(),
            dir,
        }
    }

    /// This guest in a machine restored from its present state: its memory is a
    /// copy, its connections are gone, and its address is `cid`.
    pub fn restored_as(&self, cid: u32, event_idx: bool) -> Self {
        let memory = mock_driver::copy_of(&self.memory);
        let dir = tempfile::tempdir().unwrap();
        let config = VsockConfig {
            guest_cid: cid,
            uds_path: dir.path().join("v.sock"),
            vsock_id: None,
        };
        let [receive, transmit, event] =
            [&self.receive, &self.transmit, &self.event].map(|driver| driver.moved_to(&memory));
        let positions: Vec<_> = self
            .device
            .queues()
            .iter()
            .map(Virtqueue::position)
            .collect();
        let drivers = [&receive, &transmit, &event];
        let env = mock_driver::env_at(&memory, &drivers, &positions, event_idx, 1);
        let interrupt = Arc::clone(&env.interrupt);
        let mut device = Vsock::new(&config).unwrap();
        device.restore(&self.device.save().unwrap()).unwrap();
        device.start(env).unwrap();
        Self {
            device,
            receive,
            transmit,
            event,
            memory,
            buffers: self.buffers.clone(),
            posted: self.posted,
            interrupt,
            received: VecDeque::new(),
            dir,
        }
    }

    /// The same with the same address, and running.
    pub fn restored(&self) -> Self {
        let mut guest = self.restored_as(CID, false);
        guest.wake();
        guest
    }

    /// Resets the device and starts it with empty queues.
    pub fn reboot(&mut self) {
        self.device.stop();
        self.receive = MockDriver::new(&self.memory, 0, BUFFERS as u16);
        self.transmit = MockDriver::new(&self.memory, 1, 64);
        self.event = MockDriver::new(&self.memory, 2, EVENT_QUEUE);
        self.posted = 0;
        self.received.clear();
        let drivers = [&self.receive, &self.transmit, &self.event];
        self.device
            .start(mock_driver::env(&self.memory, &drivers, 1))
            .unwrap();
        self.post(BUFFERS);
    }

    /// What the transport does right before the vCPUs run.
    pub fn wake(&mut self) {
        for queue in 0..3 {
            self.device.queue_notified(queue).unwrap();
        }
    }

    /// Posts `count` event buffers and tells the device.
    pub fn post_event_buffers(&mut self, count: usize) {
        for _ in 0..count {
            self.event.forget_data();
            let at = self.event.alloc(4);
            self.event.offer_chain(&[Descriptor::writable(at, 4)]);
        }
        self.device.queue_notified(2).unwrap();
        let used = self.collect();
        self.post(used);
    }

    /// The events that came, whose buffers are not posted again yet.
    pub fn take_events(&mut self) -> Vec<Vec<u8>> {
        let used = self.event.used();
        self.event.forget_data();
        let at = self.event.alloc(4);
        let read = |used: &Used| self.event.get(at, used.len as usize);
        used.iter().map(read).collect()
    }

    /// The device's interrupt line.
    pub fn interrupt(&self) -> Arc<Interrupt> {
        Arc::clone(&self.interrupt)
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("v.sock")
    }

    /// A program on the host that listens for the guest on `port`.
    pub fn listen(&self, port: u32) -> UnixListener {
        let listener = UnixListener::bind(self.path_of(port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    pub fn path_of(&self, port: u32) -> PathBuf {
        self.dir.path().join(format!("v.sock_{port}"))
    }

    /// A program on the host that asks for a port of the guest.
    pub fn client(&self, line: &str) -> UnixStream {
        let mut client = UnixStream::connect(self.path()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        client.write_all(line.as_bytes()).unwrap();
        client
    }

    /// Posts `count` receive buffers and tells the device, and again for each
    /// that it fills.
    pub fn post(&mut self, mut count: usize) {
        while count > 0 {
            for _ in 0..count {
                // Buffers come back in the order in which they were posted.
                let at = self.buffers[self.posted % BUFFERS];
                self.posted += 1;
                self.receive
                    .offer_chain(&[Descriptor::writable(at, BUFFER_LEN as u32)]);
            }
            self.device.queue_notified(0).unwrap();
            count = self.collect();
        }
    }

    /// Takes what the device has written.
    fn collect(&mut self) -> usize {
        let used = self.receive.used();
        for &Used { head, len } in &used {
            let bytes = self.receive.get(self.buffers[head as usize], len as usize);
            let (front, payload) = bytes.split_first_chunk().expect("a header");
            let header = Header::parse(front);
            assert_eq!(header.len as usize, payload.len());
            assert_eq!(header.dst_cid, u64::from(CID));
            self.received.push_back(Packet {
                header,
                payload: payload.to_vec(),
            });
        }
        used.len()
    }

    /// Sends a packet in the given pieces.
    pub fn send_pieces(&mut self, pieces: &[&[u8]]) {
        self.transmit.forget_data();
        self.transmit.send(pieces, &[]);
        self.device.queue_notified(1).unwrap();
        assert_eq!(self.transmit.used().len(), 1, "every packet is taken");
        let used = self.collect();
        self.post(used);
    }

    pub fn send(&mut self, header: Header) {
        self.send_pieces(&[&header.to_bytes()]);
    }

    /// Sends payload, all at once.
    pub fn send_data(&mut self, socket: &mut Socket, payload: &[u8]) {
        socket.sent = socket.sent.wrapping_add(payload.len() as u32);
        let header = Header {
            len: payload.len() as u32,
            ..socket.header(Op::Data)
        };
        self.send_pieces(&[&header.to_bytes(), payload]);
    }

    /// Waits until the device has something to do, at most `timeout`, and lets
    /// it. Returns whether it had.
    pub fn turn(&mut self, timeout: Duration) -> bool {
        let Some(fd) = self.device.backend_fd() else {
            return false;
        };
        let mut poll = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd is passed, and its length is 1.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as i32) } > 0;
        if ready {
            self.device.backend_ready().unwrap();
            let used = self.collect();
            self.post(used);
        }
        ready
    }

    /// Lets the device do all that it has to do now.
    pub fn settle(&mut self) {
        while self.turn(Duration::ZERO) {}
    }

    /// The next packet, which has to come.
    pub fn next(&mut self) -> Packet {
        loop {
            if let Some(packet) = self.received.pop_front() {
                return packet;
            }
            assert!(self.turn(Duration::from_secs(10)), "no packet comes");
        }
    }

    pub fn expect(&mut self, op: Op) -> Packet {
        let packet = self.next();
        assert_eq!(packet.op(), op, "{:?}", packet.header);
        packet
    }

    /// Nothing more comes from the device.
    pub fn expect_silence(&mut self) {
        self.settle();
        let packet = self.received.pop_front().map(|packet| packet.header);
        assert_eq!(packet, None);
    }

    /// Connects from the guest to `listener` on the host.
    pub fn connect(
        &mut self,
        listener: &UnixListener,
        host: u32,
        guest: u32,
    ) -> (Socket, UnixStream) {
        let mut socket = Socket::new(host, guest);
        self.send(socket.header(Op::Request));
        let response = self.expect(Op::Response);
        assert!(socket.is(&response));
        socket.took(&response);
        let (stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        (socket, stream)
    }

    /// Accepts in the guest the connection of a client on the host.
    pub fn accept(&mut self, client: &mut UnixStream) -> Socket {
        let request = self.expect(Op::Request);
        let mut socket = Socket::new(request.header.src_port, request.header.dst_port);
        socket.took(&request);
        self.send(socket.header(Op::Response));
        let line = format!("OK {}\n", socket.host);
        let mut read = vec![0; line.len()];
        client.read_exact(&mut read).unwrap();
        assert_eq!(read, line.as_bytes());
        socket
    }

    /// Closes a socket of the guest.
    pub fn close(&mut self, socket: &Socket) {
        self.send(socket.shutdown(SHUTDOWN_BOTH));
        let reset = self.expect(Op::Reset);
        assert!(socket.is(&reset));
    }
}
