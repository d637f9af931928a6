//! The stream to the host: messages in, messages out, never blocking.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use coppice_agent_protocol::{Decoder, Message, ToAgent, ToHost};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};

use crate::backlog::Backlog;

/// Output that may wait in a link before the command's pipes are left alone.
const ENOUGH: usize = 64 * 1024;

/// A stream with what has arrived and what is to go.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) decoder: Decoder<ToAgent>,
    out: Backlog,
}

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// This many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing ever again.
    End,
}

impl Link {
    /// A link on a connected, non-blocking stream.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            readable: true,
            writable: true,
            decoder: Decoder::new(),
            out: Backlog::default(),
        }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reads once.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Arrival> {
        while self.readable {
            match recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty()) {
                Ok(0) => return Ok(Arrival::End),
                Ok(count) => return Ok(Arrival::Bytes(count)),
                Err(Errno::EAGAIN) => self.readable = false,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Arrival::Nothing)
    }

    /// Queues a message.
    pub(crate) fn queue(&mut self, message: &ToHost) {
        let encoded = message.encode(self.out.tail());
        // Only a request can be too long: every text that the agent sends is cut.
        debug_assert_eq!(encoded, Ok(()));
    }

    /// Where to build a frame of output, if there is room for one.
    pub(crate) fn room(&mut self) -> Option<&mut Vec<u8>> {
        (self.out.len() < ENOUGH).then(|| self.out.tail())
    }

    /// Whether everything queued has been handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends what the stream takes; tells whether anything went.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        if !self.writable {
            return Ok(false);
        }
        let fd = self.fd.as_raw_fd();
        let (sent, failure) = self
            .out
            .write(|bytes| send(fd, bytes, MsgFlags::MSG_NOSIGNAL));
        match failure {
            None => {}
            Some(Errno::EAGAIN) => self.writable = false,
            Some(errno) => return Err(errno.into()),
        }
        Ok(sent > 0)
    }

    /// Tells the host that nothing more will come.
    pub(crate) fn finish(&self) {
        // A host that is gone already needs no telling.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
    }
}
