//! Messages from bytes that arrive in pieces of any size.

use std::marker::PhantomData;

use crate::error::DecodeError;
use crate::frame::{HEADER_LEN, Header, MAX_MESSAGE};
use crate::message::Message;

/// Turns a stream's bytes into messages.
///
/// Push what was read, then take messages until there is none: then the
/// decoder holds less than one frame plus the parts of one split message. A
/// header is judged as soon as it is there, before anything is kept for its
/// payload. The first error is final.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: Vec<u8>,
    /// Bytes at the buffer's front that have been turned into messages.
    taken: usize,
    /// The kind and the bytes so far of a message that is split over frames.
    parts: Option<(u8, Vec<u8>)>,
    failed: Option<DecodeError>,
    direction: PhantomData<fn() -> M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            parts: None,
            failed: None,
            direction: PhantomData,
        }
    }

    /// Adds bytes that arrived. After an error they are dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, or `None` until more bytes arrive.
    pub fn next_message(&mut self) -> Result<Option<M>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.advance().inspect_err(|error| {
            self.failed = Some(error.clone());
            self.buffer = Vec::new();
            self.taken = 0;
            self.parts = None;
        })
    }

    /// Bytes held for messages that are not complete.
    pub fn pending(&self) -> usize {
        let parts = self.parts.as_ref().map_or(0, |(_, body)| body.len());
        self.buffer.len() - self.taken + parts
    }

    fn advance(&mut self) -> Result<Option<M>, DecodeError> {
        loop {
            let rest = &self.buffer[self.taken..];
            let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else {
                return Ok(None);
            };
            let header = Header::parse(*header)?;
            self.check(header)?;
            let Some(payload) = rest.get(..header.len) else {
                return Ok(None);
            };
            self.taken += HEADER_LEN + header.len;

            if header.more {
                let (_, body) = self.parts.get_or_insert((header.kind, Vec::new()));
                body.extend_from_slice(payload);
                continue;
            }
            return match self.parts.take() {
                None => M::decode(header.kind, payload),
                Some((kind, mut body)) => {
                    body.extend_from_slice(payload);
                    M::decode(kind, &body)
                }
            }
            .map(Some);
        }
    }

    /// Everything that a header alone can do wrong.
    fn check(&self, header: Header) -> Result<(), DecodeError> {
        let Header { kind, more, len } = header;
        if !M::is_known(kind) {
            return Err(DecodeError::UnknownKind(kind));
        }
        if more && (M::is_data(kind) || len == 0) {
            return Err(DecodeError::BadContinuation(kind));
        }
        match &self.parts {
            Some((expected, _)) if *expected != kind => Err(DecodeError::Interrupted {
                expected: *expected,
                got: kind,
            }),
            Some((_, body)) if body.len() + len > MAX_MESSAGE => Err(DecodeError::MessageTooLong),
            _ => Ok(()),
        }
    }
}
