//! The serial console: a 16550A on the bus, wired to the host's console.
//!
//! vCPU threads hold the device's lock only while they touch registers, and the
//! event loop holds it only while it puts input into the FIFO; neither waits for
//! a reader of the host's terminal, pipe or file with the lock held.

mod state;
mod uart;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use log::error;
use parking_lot::Mutex;
use vmm_sys_util::eventfd::EventFd;

use crate::backends::console::{Available, Backlog, Console, ConsoleHost, Drained};
use crate::bus::{BusDevice, Effect};
use crate::state::StateError;
use uart::{Uart, Wants};

pub use state::{UartState, UartV1};

/// Ports that the device takes.
pub const LEN: u16 = 8;

/// How long the end of a machine waits for a slow reader of its console.
const FINISH_LIMIT: Duration = Duration::from_millis(500);

/// The serial device.
pub struct Serial {
    uart: Uart,
    line: EventFd,
    backlog: Arc<Backlog>,
    host: Arc<Mutex<ConsoleHost>>,
}

impl Serial {
    /// A serial device whose interrupt is `line`, on `console`.
    pub fn new(line: EventFd, console: Console) -> Self {
        Self {
            uart: Uart::new(),
            line,
            backlog: console.backlog,
            host: Arc::new(Mutex::new(console.host)),
        }
    }

    /// Bytes of output that were dropped because nobody read them in time.
    pub fn dropped(&self) -> u64 {
        self.backlog.dropped()
    }

    /// The state of the chip.
    pub fn save(&self) -> UartState {
        self.uart.save()
    }

    /// Takes in a saved state. To be called before the device has a subscriber:
    /// input that the host gave before is lost.
    ///
    /// # Errors
    /// The state breaks a rule of the chip; then nothing has changed.
    pub fn restore(&mut self, state: UartState) -> Result<(), StateError> {
        self.uart = state.try_into()?;
        Ok(())
    }

    /// Raises the interrupt again if there is reason for one. To be called after
    /// the interrupt controllers have their state: the line is an edge, and one
    /// that came up just before they were saved may be in nobody's state.
    pub fn after_restore(&self) {
        if self.uart.reasons() != 0 {
            self.interrupt();
        }
    }

    /// The machine has ended: writes what is left, waiting half a second at most
    /// for a slow reader.
    pub fn finish(serial: &Mutex<Self>) {
        // Not with the device's lock held; see `SerialSubscriber::serve`.
        let host = serial.lock().host.clone();
        host.lock().finish(FINISH_LIMIT);
    }

    fn interrupt(&self) {
        // A write fails only if the line is raised already.
        let _ = self.line.write(1);
    }

    /// Writes `byte` straight to the sink, if nothing waits to be written before it
    /// and the sink takes it without waiting. That spares two switches between
    /// threads, of which the event loop's would make the reader wait longest.
    fn send_at_once(&self, byte: u8) -> bool {
        // The event loop takes its locks in the other order, so no waiting here.
        let host = self.host.try_lock();
        host.is_some_and(|mut host| host.write_at_once(byte))
    }

    fn carry_out(&mut self, wants: Wants) {
        if let Some(byte) = wants.transmit
            && !self.send_at_once(byte)
        {
            self.backlog.push(byte);
        }
        if wants.drained {
            self.backlog.wake();
        }
        if wants.interrupt {
            self.interrupt();
        }
    }
}

impl BusDevice for Serial {
    fn read(&mut self, offset: u64, out: &mut [u8]) {
        // The chip is eight bits wide.
        let [out] = out else { return };
        let (value, wants) = self.uart.read(offset);
        *out = value;
        self.carry_out(wants);
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        if let &[value] = data {
            let wants = self.uart.write(offset, value);
            self.carry_out(wants);
        }
        Effect::None
    }
}

/// Serves a serial device's host end in the event loop.
pub struct SerialSubscriber {
    serial: Arc<Mutex<Serial>>,
    host: Arc<Mutex<ConsoleHost>>,
    backlog: Arc<Backlog>,
    watches_input: bool,
    watches_output: bool,
}

impl SerialSubscriber {
    /// A subscriber for `serial`. One device has one subscriber.
    pub fn new(serial: Arc<Mutex<Serial>>) -> Self {
        let (host, backlog) = {
            let serial = serial.lock();
            (serial.host.clone(), serial.backlog.clone())
        };
        Self {
            serial,
            host,
            backlog,
            watches_input: false,
            watches_output: false,
        }
    }

    /// Does whatever can be done without waiting, and watches for the rest.
    fn serve(&mut self, ops: &mut EventOps<'_>) {
        // Lock order: the host's end, then the device.
        let mut host = self.host.lock();
        let drained = host.drain();
        host.report_dropped();
        if drained == Drained::More {
            self.backlog.wake();
        }
        // Watched only while there is something to write: a pipe without a
        // reader would wake the loop for ever.
        let blocked = drained == Drained::Blocked;
        if let Some(fd) = host.output_fd() {
            watch(ops, fd, EventSet::OUT, blocked, &mut self.watches_output);
        }

        let wants_input = loop {
            let room = self.serial.lock().uart.room();
            match host.read_input(room) {
                Available::Pending => {}
                Available::Nothing => break room > 0,
                Available::Ended => break false,
            }
            let mut serial = self.serial.lock();
            let (taken, interrupt) = serial.uart.receive(host.pending());
            if interrupt {
                serial.interrupt();
            }
            drop(serial);
            host.taken(taken);
            if taken == 0 {
                break false;
            }
        };
        if let Some(fd) = host.input_fd() {
            watch(ops, fd, EventSet::IN, wants_input, &mut self.watches_input);
        }
    }
}

/// Adds `fd` to the event loop or takes it out, as `wanted`. A descriptor that
/// cannot be watched, such as a file's, is always ready and was served to its
/// end just now.
fn watch(
    ops: &mut EventOps<'_>,
    fd: BorrowedFd<'_>,
    set: EventSet,
    wanted: bool,
    is_watched: &mut bool,
) {
    if wanted == *is_watched {
        return;
    }
    let events = Events::new(&fd, set);
    *is_watched = match wanted {
        true => ops.add(events).is_ok(),
        false => ops.remove(events).is_err(),
    };
}

impl MutEventSubscriber for SerialSubscriber {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        let wake = Events::new(self.backlog.wake_fd(), EventSet::IN);
        if let Err(error) = ops.add(wake) {
            error!("the console is dead: the event loop does not watch it: {error}");
        }
        self.serve(ops);
    }

    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        if events.fd() == self.backlog.wake_fd().as_raw_fd() {
            // Empty if another event was served first.
            let _ = self.backlog.wake_fd().read();
        }
        self.serve(ops);
    }
}

#[cfg(test)]
#[path = "serial_test.rs"]
mod tests;
