//! Saved states: how they are encoded, and what can be wrong with one.
//!
//! A state is a plain struct, apart from what it is the state of, inside an enum
//! with one variant for each version that ever was saved
//! (`enum UartState { V1(UartV1) }`), encoded with `postcard`. A version that this
//! program does not know is therefore an encoding that it cannot read. Whoever
//! restores a state checks every value before it is used: a state is a file's
//! word, no better than a guest's.
//!
//! Where devices are saved and restored:
//!
//! | what | save | restore | before vCPUs run |
//! |---|---|---|---|
//! | a virtio device | `MmioTransport::save` | `MmioTransport::restore` | `MmioTransport::after_restore` |
//! | the serial port | `Serial::save` | `Serial::restore` | `Serial::after_restore` |
//! | the keyboard controller | `I8042::save` | `I8042::restore` | `I8042::after_restore` |
//!
//! Saving changes nothing and wants the vCPUs at rest, and the event loop between
//! two events: then no device has a request in flight. Restoring wants a device
//! that was just built, and guest memory already filled. What has to reach the
//! guest as an interrupt waits for the third step, because the interrupt
//! controllers' state, once filled, knows nothing of what was raised before.
//!
//! The registers for power-off and of pvpanic keep nothing, and what the
//! generation identifier keeps is in guest memory; see `VmGenId::renew`.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why something cannot be saved, or a saved state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is no saved form of it.
    #[error("{what} cannot be saved in a snapshot: take it out of the machine before snapshots")]
    Unsupported {
        /// What was to be saved.
        what: String,
    },
    /// It cannot be saved as it is now.
    #[error("{what} cannot be saved now: {why}")]
    NotNow {
        /// What was to be saved.
        what: String,
        /// What stands in the way.
        why: String,
    },
    /// The bytes are not a state that this program knows.
    #[error(
        "the saved state of {what} cannot be read ({source}): the snapshot is damaged, or a later version made it"
    )]
    Encoding {
        /// What was to be restored.
        what: String,
        /// What the decoder found.
        source: postcard::Error,
    },
    /// The state says something that cannot be, or does not fit this machine.
    #[error("the saved state of {what} is refused: {why}")]
    Refused {
        /// What was to be restored.
        what: String,
        /// Which value is wrong, and what would be right.
        why: String,
    },
}

impl StateError {
    /// The state of `what` is refused because of `why`.
    pub fn refused(what: impl Display, why: impl Display) -> Self {
        Self::Refused {
            what: what.to_string(),
            why: why.to_string(),
        }
    }
}

/// The bytes of the state of `what`.
///
/// # Errors
/// [`StateError::NotNow`] if the state has no encoding, which none of those here
/// has reason for.
pub fn encode(what: impl Display, state: &impl Serialize) -> Result<Vec<u8>, StateError> {
    postcard::to_allocvec(state).map_err(|error| StateError::NotNow {
        what: what.to_string(),
        why: error.to_string(),
    })
}

/// The state of `what` in `bytes`, all of which it has to take.
///
/// # Errors
/// [`StateError::Encoding`].
pub fn decode<T: DeserializeOwned>(what: impl Display, bytes: &[u8]) -> Result<T, StateError> {
    let failed = |source| StateError::Encoding {
        what: what.to_string(),
        source,
    };
    match postcard::take_from_bytes(bytes) {
        Ok((state, [])) => Ok(state),
        Ok(_) => Err(failed(postcard::Error::DeserializeBadEncoding)),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Sample {
        V1 { bytes: Vec<u8>, number: u64 },
    }

    #[test]
    fn a_state_is_read_whole_or_not_at_all() {
        let sample = Sample::V1 {
            bytes: vec![7; 200],
            number: u64::MAX,
        };
        let mut bytes = encode("a sample", &sample).unwrap();
        assert_eq!(decode::<Sample>("a sample", &bytes).unwrap(), sample);
        for len in 0..bytes.len() {
            decode::<Sample>("a sample", &bytes[..len]).expect_err("cut");
        }
        bytes.push(0);
        let error = decode::<Sample>("a sample", &bytes).expect_err("too long");
        assert!(error.to_string().contains("a sample"), "{error}");
        bytes.pop();
        bytes[0] = 1;
        decode::<Sample>("a sample", &bytes).expect_err("version 2");
    }

    #[test]
    fn a_length_that_lies_takes_no_memory() {
        // Version 1, and a length of nearly 2^63 bytes.
        let lie = [0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        decode::<Sample>("a sample", &lie).expect_err("nothing is there");
    }
}
