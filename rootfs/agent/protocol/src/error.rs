//! Why bytes are no message, or a message cannot become bytes.

use std::io;

use crate::frame::{MAX_MESSAGE, MAX_PAYLOAD};

/// The other side sent something that this protocol does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A frame's first byte names no message of this direction.
    #[error("frame kind {0:#04x} is unknown; is the other side speaking this protocol?")]
    UnknownKind(u8),
    /// A frame announces more than [`MAX_PAYLOAD`] bytes.
    #[error("a frame announces {0} bytes; the limit is {MAX_PAYLOAD}")]
    FrameTooLong(u32),
    /// The parts of a split message exceed [`MAX_MESSAGE`] bytes together.
    #[error("a split message exceeds the limit of {MAX_MESSAGE} bytes")]
    MessageTooLong,
    /// A split message was interrupted by a frame of another kind.
    #[error("frame kind {got:#04x} interrupts the parts of message kind {expected:#04x}")]
    Interrupted {
        /// The kind whose parts were being collected.
        expected: u8,
        /// The kind that arrived instead.
        got: u8,
    },
    /// A part that says "more follows" was empty or carries stream data.
    #[error("a frame of kind {0:#04x} must not be marked as continued")]
    BadContinuation(u8),
    /// A message ended before its last field.
    #[error("message kind {kind:#04x} ends within its field `{field}`")]
    Truncated {
        /// The message's kind.
        kind: u8,
        /// The field that is cut.
        field: &'static str,
    },
    /// A field holds a value outside its range.
    #[error("message kind {kind:#04x}: field `{field}` holds an invalid value")]
    BadValue {
        /// The message's kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
    /// A message goes on after its last field.
    #[error("message kind {kind:#04x} carries {extra} bytes after its last field")]
    TrailingBytes {
        /// The message's kind.
        kind: u8,
        /// How many bytes were left.
        extra: usize,
    },
    /// A hello does not begin with [`crate::MAGIC`].
    #[error("the hello does not begin with the protocol's magic")]
    BadMagic,
}

/// A message does not fit in the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message is longer than [`MAX_MESSAGE`].
    #[error(
        "the request takes {len} bytes; the limit for arguments and environment is {MAX_MESSAGE}"
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
}

/// Reading a message from a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream failed.
    #[error("the stream to the other side failed")]
    Io(#[from] io::Error),
    /// The stream carried something that is no message.
    #[error("the other side broke the protocol")]
    Decode(#[from] DecodeError),
    /// The stream ended in the middle of a message.
    #[error("the stream ended in the middle of a message")]
    Cut,
}
