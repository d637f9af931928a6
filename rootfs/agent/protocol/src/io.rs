//! Messages over blocking streams.

use std::io::{self, Read, Write};

use crate::decoder::Decoder;
use crate::error::ReadError;
use crate::message::Message;

/// Reads messages from a blocking stream.
#[derive(Debug)]
pub struct MessageReader<R, M> {
    stream: R,
    decoder: Decoder<M>,
    chunk: Box<[u8]>,
}

impl<R: Read, M: Message> MessageReader<R, M> {
    /// A reader at the start of `stream`.
    pub fn new(stream: R) -> Self {
        Self {
            stream,
            decoder: Decoder::new(),
            chunk: vec![0; 64 * 1024].into_boxed_slice(),
        }
    }

    /// The next message; `None` if the stream ends between two messages.
    pub fn next_message(&mut self) -> Result<Option<M>, ReadError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(Some(message));
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) if self.decoder.pending() == 0 => return Ok(None),
                Ok(0) => return Err(ReadError::Cut),
                Ok(len) => self.decoder.push(&self.chunk[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The stream.
    pub fn get_ref(&self) -> &R {
        &self.stream
    }
}

/// Writes one message. A message that is too long gives `InvalidInput` with
/// the [`crate::EncodeError`] as its source.
pub fn write_message(stream: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let mut bytes = Vec::new();
    message
        .encode(&mut bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    stream.write_all(&bytes)
}
