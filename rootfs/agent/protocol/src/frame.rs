//! Frames: one byte of kind, four bytes of length (little endian), the payload.

use crate::error::{DecodeError, EncodeError};

/// Bytes before a frame's payload.
pub const HEADER_LEN: usize = 5;

/// The most bytes that one frame may carry.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// The most bytes that one message may take when it is split over frames.
/// Linux allows 2 MiB of arguments and environment with the usual stack limit.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// The most arguments, and the most environment variables, of a request. An
/// empty one takes four bytes here but many times that in memory.
pub const MAX_ITEMS: u32 = 128 * 1024;

/// Bit of the kind byte: the message goes on in the next frame.
pub(crate) const MORE: u8 = 0x80;

/// A frame's header after its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) more: bool,
    pub(crate) len: usize,
}

impl Header {
    /// Takes a header apart. Whether the kind exists is for the message to say.
    pub(crate) fn parse(bytes: [u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let [kind, a, b, c, d] = bytes;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > MAX_PAYLOAD {
            return Err(DecodeError::FrameTooLong(len));
        }
        Ok(Self {
            kind: kind & !MORE,
            more: kind & MORE != 0,
            len: len as usize,
        })
    }
}

fn put_header(kind: u8, len: usize, out: &mut Vec<u8>) {
    debug_assert!(len <= MAX_PAYLOAD);
    out.push(kind);
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

/// Appends a control message, split over frames if it is long.
pub(crate) fn put_message(kind: u8, body: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if body.len() > MAX_MESSAGE {
        return Err(EncodeError::TooLong { len: body.len() });
    }
    let mut rest = body;
    while rest.len() > MAX_PAYLOAD {
        let (part, tail) = rest.split_at(MAX_PAYLOAD);
        put_header(kind | MORE, part.len(), out);
        out.extend_from_slice(part);
        rest = tail;
    }
    put_header(kind, rest.len(), out);
    out.extend_from_slice(rest);
    Ok(())
}

/// Appends stream data in as many frames as it takes; none if there is none.
pub(crate) fn put_data(kind: u8, data: &[u8], out: &mut Vec<u8>) {
    for part in data.chunks(MAX_PAYLOAD) {
        put_header(kind, part.len(), out);
        out.extend_from_slice(part);
    }
}

/// Which output stream a [`DataFrame`] carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stream {
    Stdout = crate::message::kind::STDOUT,
    Stderr = crate::message::kind::STDERR,
}

/// Builds one output frame in place, so that a pipe can be read straight into
/// the buffer that goes to the stream.
///
/// ```
/// use coppice_agent_protocol::{DataFrame, Decoder, ToHost};
/// let mut out = Vec::new();
/// DataFrame::stdout(&mut out).fill(16, |space| { space[..2].copy_from_slice(b"hi"); 2 });
/// let mut decoder = Decoder::<ToHost>::new();
/// decoder.push(&out);
/// assert_eq!(decoder.next_message(), Ok(Some(ToHost::Stdout(b"hi".to_vec()))));
/// ```
#[derive(Debug)]
pub struct DataFrame<'a> {
    out: &'a mut Vec<u8>,
    stream: Stream,
}

impl<'a> DataFrame<'a> {
    /// A frame of standard output at the end of `out`.
    pub fn stdout(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            stream: Stream::Stdout,
        }
    }

    /// A frame of standard error at the end of `out`.
    pub fn stderr(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            stream: Stream::Stderr,
        }
    }

    /// Offers `read` up to `space` bytes (at most [`MAX_PAYLOAD`]) to fill and
    /// keeps as many as it says; no frame appears if it says 0.
    /// Returns the bytes that were kept.
    pub fn fill(self, space: usize, read: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let space = space.min(MAX_PAYLOAD);
        let start = self.out.len();
        let body = start + HEADER_LEN;
        self.out.resize(body + space, 0);
        let len = read(&mut self.out[body..]).min(space);
        if len == 0 {
            self.out.truncate(start);
            return 0;
        }
        self.out.truncate(body + len);
        self.out[start] = self.stream as u8;
        self.out[start + 1..body].copy_from_slice(&(len as u32).to_le_bytes());
        len
    }
}
