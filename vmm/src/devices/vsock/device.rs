//! The device as its transport sees it: three queues and the guest's address.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::muxer::Muxer;
use super::packet::{HEADER_LEN, Header};
use super::reset::{CONFIRM_LIMIT, TransportReset};
use super::state::{NAME, VsockState, VsockV1};
use crate::backends::unix::{ListenError, Listener};
use crate::spec::VsockConfig;
use crate::state::{self, StateError};
use crate::virtio::{
    Buffers, DeviceEnv, DeviceFault, Identity, Interrupt, VirtioDevice, Virtqueue,
};

/// Device type (virtio 1.2 §5.10.1).
const VSOCK: u32 = 19;
/// Stream sockets (virtio 1.2 §5.10.3), the only type there is here.
const F_STREAM: u64 = 1 << 0;
/// Sizes of the receive, transmit and event queue.
pub const QUEUE_SIZES: &[u16] = &[256, 256, 16];

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
pub const EVENT: usize = 2;

/// What one wake-up does in each direction before other devices get a turn.
const MAX_PACKETS: usize = 256;
const MAX_BYTES: usize = 4 << 20;

/// Why the device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// Its socket could not be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The host gave no descriptors to watch sockets with.
    #[error(
        "no epoll, timer or event descriptor for the vsock device; is the limit of open files reached?"
    )]
    Watch(#[source] io::Error),
}

/// The socket device.
pub struct Vsock {
    guest_cid: u32,
    muxer: Muxer,
    reset: TransportReset,
    running: Option<Running>,
}

/// What there is while a driver runs.
struct Running {
    queues: [Virtqueue; 3],
    interrupt: Arc<Interrupt>,
}

impl Vsock {
    /// A device for the guest `guest_cid`, with its socket listening at
    /// `uds_path`.
    ///
    /// # Errors
    /// The path cannot be listened at, or the host is out of descriptors.
    pub fn new(config: &VsockConfig) -> Result<Self, VsockError> {
        let listener = Listener::bind(&config.uds_path)?;
        let muxer = Muxer::new(config.guest_cid, listener).map_err(VsockError::Watch)?;
        Ok(Self {
            guest_cid: config.guest_cid,
            muxer,
            reset: TransportReset::default(),
            running: None,
        })
    }

    /// Moves packets both ways, what the guest sends first: it may free credit
    /// for what it receives.
    fn serve(&mut self) -> Result<(), DeviceFault> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let more_sent = running.take_in(&mut self.muxer)?;
        let more_received = running.give_out(&mut self.muxer)?;
        if more_sent || more_received {
            self.muxer.ring();
        }
        Ok(())
    }

    /// Tells the guest that its connections are gone, if it has yet to hear it.
    fn serve_events(&mut self) -> Result<(), DeviceFault> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        if !self.reset.is_pending() {
            return Ok(());
        }
        self.reset
            .serve(&mut running.queues[EVENT], &running.interrupt)?;
        if self.reset.is_pending() {
            self.muxer.limit_gate(Instant::now() + CONFIRM_LIMIT);
        } else {
            self.muxer.open_gate();
        }
        Ok(())
    }
}

impl VirtioDevice for Vsock {
    fn identity(&self) -> Identity {
        Identity {
            device_id: VSOCK,
            features: F_STREAM,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn read_config(&self, offset: u64, out: &mut [u8]) {
        let space = u64::from(self.guest_cid).to_le_bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in out.iter_mut().zip(space.iter().skip(start)) {
            *to = *from;
        }
    }

    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault> {
        let queues = <[Virtqueue; 3]>::try_from(env.queues)
            .map_err(|queues| DeviceFault(format!("vsock has 3 queues, not {}", queues.len())))?;
        self.reset.start(&queues[EVENT])?;
        if !self.reset.is_pending() {
            self.muxer.open_gate();
        }
        self.running = Some(Running {
            queues,
            interrupt: env.interrupt,
        });
        self.muxer.start();
        Ok(())
    }

    fn stop(&mut self) {
        self.running = None;
        self.reset = TransportReset::default();
        self.muxer.stop();
    }

    fn queues(&self) -> &[Virtqueue] {
        self.running.as_ref().map_or(&[], |running| &running.queues)
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        let unconfirmed_resets = match &self.running {
            Some(running) => self
                .reset
                .unconfirmed(&running.queues[EVENT])
                .map_err(|fault| StateError::NotNow {
                    what: NAME.into(),
                    why: fault.to_string(),
                })?,
            None => 0,
        };
        let state = VsockState::V1(VsockV1 {
            next_host_port: self.muxer.next_host_port(),
            unconfirmed_resets,
        });
        state::encode(NAME, &state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let VsockV1 {
            next_host_port,
            unconfirmed_resets,
        } = state::decode::<VsockState>(NAME, state)?.checked()?;
        self.muxer.set_next_host_port(next_host_port);
        self.muxer.shut_gate();
        self.reset = TransportReset::due(unconfirmed_resets);
        Ok(())
    }

    fn queue_notified(&mut self, index: usize) -> Result<(), DeviceFault> {
        match index {
            RECEIVE | TRANSMIT => self.serve(),
            _ => {
                self.serve_events()?;
                self.serve()
            }
        }
    }

    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.muxer.fd())
    }

    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        self.muxer.host_events();
        self.serve()
    }
}

impl Running {
    /// Takes packets from the guest; `true` if there may be more.
    fn take_in(&mut self, muxer: &mut Muxer) -> Result<bool, DeviceFault> {
        let (mut packets, mut bytes) = (0, 0);
        let transmit = &mut self.queues[TRANSMIT];
        transmit.disable_notification();
        let more = loop {
            if packets == MAX_PACKETS || bytes >= MAX_BYTES {
                break true;
            }
            if let Some(chain) = transmit.pop()? {
                bytes += take_packet(chain.readable, muxer);
                transmit.push_used(chain.head, 0)?;
                packets += 1;
            } else if !transmit.enable_notification()? {
                break false;
            }
        };
        if packets > 0 && transmit.needs_interrupt()? {
            self.interrupt.used_buffers();
        }
        Ok(more)
    }

    /// Gives packets to the guest for as long as it has buffers; `true` if
    /// there may be more. Without buffers the guest's next notification goes on.
    fn give_out(&mut self, muxer: &mut Muxer) -> Result<bool, DeviceFault> {
        let (mut packets, mut bytes) = (0, 0);
        let receive = &mut self.queues[RECEIVE];
        let more = loop {
            if !muxer.has_packet() {
                break false;
            }
            if packets == MAX_PACKETS || bytes >= MAX_BYTES {
                break true;
            }
            receive.disable_notification();
            let Some(chain) = receive.pop()? else {
                if receive.enable_notification()? {
                    continue;
                }
                break false;
            };
            let mut room = chain.writable;
            let mut front = room.take(HEADER_LEN);
            let written = if front.len() < HEADER_LEN || room.is_empty() {
                muxer.complain("a receive buffer has no room for a packet");
                0
            } else if let Some(header) = muxer.next_packet(&room.slices()) {
                front.write_all(&header.to_bytes())?;
                HEADER_LEN as u32 + header.len
            } else {
                receive.undo_pop();
                break false;
            };
            receive.push_used(chain.head, written)?;
            packets += 1;
            bytes += written as usize;
        };
        if packets > 0 && receive.needs_interrupt()? {
            self.interrupt.used_buffers();
        }
        Ok(more)
    }
}

/// Takes in one packet of the guest and returns the length of its payload.
fn take_packet(mut readable: Buffers, muxer: &mut Muxer) -> usize {
    let mut bytes = [0; HEADER_LEN];
    if readable.read_exact(&mut bytes).is_err() {
        muxer.complain("a packet is shorter than its header");
        return 0;
    }
    let header = Header::parse(&bytes);
    let payload = readable.take(header.len as usize);
    muxer.take_packet(&header, &payload.slices());
    payload.len()
}

#[cfg(test)]
#[path = "device_test.rs"]
mod tests;

#[cfg(test)]
#[path = "restore_test.rs"]
mod restore_tests;
