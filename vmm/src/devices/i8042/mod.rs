//! The i8042 keyboard controller with a keyboard on it and no mouse: enough for
//! a guest to reset through it, and for Ctrl-Alt-Del to be pressed from outside.
//!
//! Commands and registers are those of the IBM PS/2 Hardware Interface Technical
//! Reference, "Keyboard and Auxiliary Device Controller".

mod state;

use std::collections::VecDeque;

use vmm_sys_util::eventfd::EventFd;

use crate::bus::{BusDevice, Effect};

pub use state::{ExpectsV1, I8042State, I8042V1};

/// Ports that the device takes: the first is data, the last status and command.
pub const LEN: u16 = 5;

const DATA: u64 = 0;
/// System control port B, which lies between the two.
const PORT_B: u64 = 1;
const COMMAND: u64 = 4;

/// Status: a byte waits to be read; the self-test passed; the last write was a
/// command; the keyboard is not locked.
const STATUS_OUTPUT_FULL: u8 = 1 << 0;
const STATUS_SYSTEM: u8 = 1 << 2;
const STATUS_COMMAND: u8 = 1 << 3;
const STATUS_UNLOCKED: u8 = 1 << 4;

/// Command byte: keyboard interrupt; self-test passed; no mouse; translate scan
/// codes to set 1.
const CONFIG_INTERRUPT: u8 = 1 << 0;
const CONFIG_SYSTEM: u8 = 1 << 2;
const CONFIG_NO_MOUSE: u8 = 1 << 5;
const CONFIG_TRANSLATE: u8 = 1 << 6;

/// Output port: the CPU's reset line is not held; gate A20 is open.
const OUTPUT_NOT_RESET: u8 = 1 << 0;
const OUTPUT_A20: u8 = 1 << 1;

/// Port B: the output of the PIT's channel 2 reads as high, so that nobody
/// waits for it.
const PORT_B_TIMER_HIGH: u8 = 1 << 5;

/// The keyboard's answers: command understood; not understood.
const ACK: u8 = 0xfa;
const RESEND: u8 = 0xfe;

/// Bytes that wait for the guest at most; a keyboard has sixteen.
const QUEUE: usize = 16;

/// Left Ctrl, left Alt and Delete pressed, then released: scan code set 1 and,
/// without translation, set 2.
const CTRL_ALT_DEL_SET_1: [u8; 8] = [0x1d, 0x38, 0xe0, 0x53, 0xe0, 0xd3, 0xb8, 0x9d];
const CTRL_ALT_DEL_SET_2: [u8; 11] = [
    0x14, 0x11, 0xe0, 0x71, 0xe0, 0xf0, 0x71, 0xf0, 0x11, 0xf0, 0x14,
];

/// What the next byte that is written to the data port belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// A command for the keyboard.
    KeyboardCommand,
    /// The parameter of that keyboard command.
    KeyboardParameter(u8),
    /// The parameter of that command of the controller.
    Parameter(u8),
}

/// The keyboard controller.
pub struct I8042 {
    line: EventFd,
    output: VecDeque<u8>,
    config: u8,
    last_was_command: bool,
    expects: Expects,
}

impl I8042 {
    /// A controller whose keyboard interrupt is `line`.
    pub fn new(line: EventFd) -> Self {
        Self {
            line,
            output: VecDeque::with_capacity(QUEUE),
            config: CONFIG_INTERRUPT | CONFIG_SYSTEM | CONFIG_NO_MOUSE | CONFIG_TRANSLATE,
            last_was_command: false,
            expects: Expects::KeyboardCommand,
        }
    }

    /// Presses and releases Ctrl-Alt-Del. If the guest does not listen to its
    /// keyboard nothing comes of it.
    pub fn ctrl_alt_del(&mut self) {
        let codes: &[u8] = if self.config & CONFIG_TRANSLATE != 0 {
            &CTRL_ALT_DEL_SET_1
        } else {
            &CTRL_ALT_DEL_SET_2
        };
        // All or nothing: half of it would leave a key pressed for ever.
        if self.output.len() + codes.len() <= QUEUE {
            self.send(codes);
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let was_empty = self.output.is_empty();
        let room = QUEUE.saturating_sub(self.output.len());
        self.output.extend(bytes.iter().take(room));
        if was_empty {
            self.interrupt();
        }
    }

    /// Each byte that comes to lie in the output register is an edge of its own.
    fn interrupt(&self) {
        if self.config & CONFIG_INTERRUPT != 0 && !self.output.is_empty() {
            // A write fails only if the line is raised already.
            let _ = self.line.write(1);
        }
    }

    fn command(&mut self, command: u8) -> Effect {
        match command {
            // Read the command byte.
            0x20 => self.send(&[self.config]),
            // Mouse test: its clock line is stuck, there is none.
            0xa9 => self.send(&[0x01]),
            // Self-test: passed, and the keyboard is as after power-on.
            0xaa => {
                self.output.clear();
                self.send(&[0x55]);
            }
            // Keyboard interface test: passed.
            0xab => self.send(&[0x00]),
            // Read the output port.
            0xd0 => self.send(&[OUTPUT_NOT_RESET | OUTPUT_A20]),
            // Write the command byte, output port, keyboard buffer, mouse
            // buffer, mouse: the byte follows.
            0x60 | 0xd1..=0xd4 => self.expects = Expects::Parameter(command),
            // Pulse the lines of the output port whose bits are clear; bit 0 is
            // the CPU's reset.
            0xf0..=0xff if command & OUTPUT_NOT_RESET == 0 => return Effect::Reset,
            // The rest turns things on and off that are not modelled.
            _ => {}
        }
        Effect::None
    }

    fn parameter(&mut self, command: u8, value: u8) -> Effect {
        match command {
            0x60 => {
                self.config = value | CONFIG_NO_MOUSE;
                // A byte that waits is signalled as soon as that is allowed.
                self.interrupt();
            }
            0xd1 if value & OUTPUT_NOT_RESET == 0 => return Effect::Reset,
            0xd2 => self.send(&[value]),
            // The answer would be marked as the mouse's if there were one.
            0xd3 => self.send(&[0x00]),
            _ => {}
        }
        Effect::None
    }

    fn keyboard(&mut self, command: u8) {
        match command {
            // LEDs, scan code set, repeat rate: a parameter follows.
            0xed | 0xf0 | 0xf3 => {
                self.expects = Expects::KeyboardParameter(command);
                self.send(&[ACK]);
            }
            // Echo.
            0xee => self.send(&[0xee]),
            // Identify: an MF2 keyboard, in the code that the translation leaves.
            0xf2 if self.config & CONFIG_TRANSLATE != 0 => self.send(&[ACK, 0xab, 0x41]),
            0xf2 => self.send(&[ACK, 0xab, 0x83]),
            // Enable, disable, defaults.
            0xf4..=0xf6 => self.send(&[ACK]),
            // Reset: acknowledged, self-test passed.
            0xff => self.send(&[ACK, 0xaa]),
            _ => self.send(&[RESEND]),
        }
    }

    fn keyboard_parameter(&mut self, command: u8, value: u8) {
        match (command, value) {
            // Which scan code set is in use? The second.
            (0xf0, 0) => self.send(&[ACK, 0x02]),
            _ => self.send(&[ACK]),
        }
    }

    fn status(&self) -> u8 {
        let mut status = STATUS_UNLOCKED;
        if !self.output.is_empty() {
            status |= STATUS_OUTPUT_FULL;
        }
        if self.config & CONFIG_SYSTEM != 0 {
            status |= STATUS_SYSTEM;
        }
        if self.last_was_command {
            status |= STATUS_COMMAND;
        }
        status
    }
}

impl BusDevice for I8042 {
    fn read(&mut self, offset: u64, out: &mut [u8]) {
        let [out] = out else { return };
        *out = match offset {
            DATA => {
                let byte = self.output.pop_front().unwrap_or(0);
                self.interrupt();
                byte
            }
            PORT_B => PORT_B_TIMER_HIGH,
            COMMAND => self.status(),
            _ => return,
        };
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let &[value] = data else { return Effect::None };
        match offset {
            COMMAND => {
                self.last_was_command = true;
                self.expects = Expects::KeyboardCommand;
                self.command(value)
            }
            DATA => {
                self.last_was_command = false;
                match std::mem::replace(&mut self.expects, Expects::KeyboardCommand) {
                    Expects::Parameter(command) => return self.parameter(command, value),
                    Expects::KeyboardParameter(command) => self.keyboard_parameter(command, value),
                    Expects::KeyboardCommand => self.keyboard(value),
                }
                Effect::None
            }
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
#[path = "i8042_test.rs"]
mod tests;
