//! The saved form of the controller and its keyboard.

use serde::{Deserialize, Serialize};

use super::{CONFIG_NO_MOUSE, Expects, I8042, QUEUE};
use crate::state::StateError;

/// What is kept of a keyboard controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum I8042State {
    /// Version 1.
    V1(I8042V1),
}

/// Version 1 of [`I8042State`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct I8042V1 {
    /// Bytes that the guest has not read, the oldest first; at most 16.
    pub output: Vec<u8>,
    /// The command byte; bit 5 is set.
    pub config: u8,
    /// The last byte written was a command.
    pub last_was_command: bool,
    /// What the next byte written to the data port is.
    pub expects: ExpectsV1,
}

/// See [`I8042V1::expects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpectsV1 {
    /// A command for the keyboard.
    KeyboardCommand,
    /// The parameter of that keyboard command.
    KeyboardParameter(u8),
    /// The parameter of that command of the controller.
    Parameter(u8),
}

impl I8042 {
    /// The state of the controller and its keyboard.
    pub fn save(&self) -> I8042State {
        let Self {
            line: _,
            output,
            config,
            last_was_command,
            expects,
        } = self;
        I8042State::V1(I8042V1 {
            output: output.iter().copied().collect(),
            config: *config,
            last_was_command: *last_was_command,
            expects: match *expects {
                Expects::KeyboardCommand => ExpectsV1::KeyboardCommand,
                Expects::KeyboardParameter(command) => ExpectsV1::KeyboardParameter(command),
                Expects::Parameter(command) => ExpectsV1::Parameter(command),
            },
        })
    }

    /// Takes in a saved state.
    ///
    /// # Errors
    /// The state breaks a rule of the controller; then nothing has changed.
    pub fn restore(&mut self, state: I8042State) -> Result<(), StateError> {
        let I8042State::V1(I8042V1 {
            output,
            config,
            last_was_command,
            expects,
        }) = state;
        let refuse = |why: String| Err(StateError::refused("the keyboard controller", why));
        if output.len() > QUEUE {
            return refuse(format!(
                "{} bytes wait for the guest, but there is room for {QUEUE}",
                output.len()
            ));
        }
        if config & CONFIG_NO_MOUSE == 0 {
            return refuse(format!(
                "the command byte {config:#04x} speaks of a mouse, and there is none"
            ));
        }
        let expects = match expects {
            ExpectsV1::KeyboardCommand => Expects::KeyboardCommand,
            ExpectsV1::KeyboardParameter(command @ (0xed | 0xf0 | 0xf3)) => {
                Expects::KeyboardParameter(command)
            }
            ExpectsV1::Parameter(command @ (0x60 | 0xd1..=0xd4)) => Expects::Parameter(command),
            ExpectsV1::KeyboardParameter(command) | ExpectsV1::Parameter(command) => {
                return refuse(format!("the command {command:#04x} has no parameter"));
            }
        };
        self.output = output.into();
        self.config = config;
        self.last_was_command = last_was_command;
        self.expects = expects;
        Ok(())
    }

    /// Raises the interrupt again if a byte waits. To be called after the interrupt
    /// controllers have their state: the line is an edge, and one that came up just
    /// before they were saved may be in nobody's state.
    pub fn after_restore(&self) {
        self.interrupt();
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
