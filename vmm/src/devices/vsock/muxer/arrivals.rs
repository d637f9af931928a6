//! How connections come about: the guest asks for a port of the host, or a client
//! on the host for one of the guest.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use super::super::connection::Connection;
use super::super::handshake::{Handshake, Progress};
use super::super::packet::{HOST_CID, Header, TYPE_STREAM};
use super::super::watch::Token;
use super::{HOST_PORTS, Muxer, Ports};
use crate::backends::unix::Stream;

/// Streams that exist at once, whatever they are used for.
pub(super) const MAX_STREAMS: usize = 1024;
/// Clients of the host that have not said yet what they want.
pub(super) const MAX_HANDSHAKES: usize = 256;
/// Clients accepted in one wake-up.
const ACCEPT_BATCH: usize = 32;

impl Muxer {
    /// The guest asks for a port of the host with `request`.
    pub(super) fn connect_to_host(&mut self, ports: Ports, request: &Header) {
        let mut path = OsString::from(self.listener.path());
        path.push(format!("_{}", ports.host));
        let path = PathBuf::from(path);
        let connected = if self.has_room() {
            Stream::connect(&path)
        } else {
            Err(io::Error::other("too many connections"))
        };
        match connected.and_then(|stream| Ok((self.watch.add(stream.as_fd())?, stream))) {
            Ok((token, stream)) => {
                self.insert(ports, token, Connection::from_guest(stream, request));
            }
            Err(error) => {
                log::debug!("vsock: no connection to {}: {error}", path.display());
                self.push_reset(HOST_CID, TYPE_STREAM, ports);
            }
        }
    }

    /// Clients of the host wait at the listener.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match self.listener.accept() {
                Ok(Some(stream)) => self.greet(stream),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Watching on would only report the same again at once.
                    log::warn!("vsock: no client can be accepted for now: {error}");
                    self.out_of_descriptors = true;
                    self.watch.want_clients(self.listener.as_fd(), false);
                    self.watch.tick();
                    return;
                }
            }
        }
    }

    /// A client has connected. Without a driver there is nobody to ask: closing
    /// at once tells the client to try again.
    fn greet(&mut self, stream: Stream) {
        if !self.serving || !self.has_room() {
            return;
        }
        if self.handshakes.len() == MAX_HANDSHAKES {
            self.handshakes.pop_first();
        }
        match self.watch.add(stream.as_fd()) {
            Ok(token) => {
                let handshake = Handshake::new(stream, Instant::now());
                self.handshakes.insert(token, handshake);
                self.watch.tick();
            }
            Err(error) => log::warn!("vsock: a client cannot be watched: {error}"),
        }
    }

    /// A client sent more of its line, or went away.
    pub(super) fn advance(&mut self, token: Token, hung_up: bool) {
        let Some(handshake) = self.handshakes.get_mut(&token) else {
            // Fetched together with the event that ended it.
            return;
        };
        match handshake.advance() {
            Progress::Waiting => {}
            Progress::Refused => drop(self.handshakes.remove(&token)),
            Progress::Port(guest) => {
                let handshake = self.handshakes.remove(&token).expect("it is there");
                let host = self.free_host_port(guest);
                let mut connection = Connection::from_host(handshake.stream, Instant::now());
                if hung_up {
                    connection.hung_up();
                }
                self.insert(Ports { host, guest }, token, connection);
            }
        }
    }

    /// A host port that makes a new pair with the guest's port. Ports go round,
    /// so that the guest has long forgotten the last connection of a pair.
    pub(super) fn free_host_port(&mut self, guest: u32) -> u32 {
        loop {
            let host = self.next_host_port;
            self.next_host_port = if host == *HOST_PORTS.end() {
                *HOST_PORTS.start()
            } else {
                host + 1
            };
            let ports = Ports { host, guest };
            if !self.connections.contains_key(&ports) && !self.closing.has(ports) {
                return host;
            }
        }
    }

    /// Makes room for one more stream, at the cost of the oldest that only
    /// waits for a slow host; `false` if there is none.
    fn has_room(&mut self) -> bool {
        let streams = self.connections.len() + self.handshakes.len() + self.orphans.len();
        streams < self.max_streams || self.orphans.drop_oldest()
    }
}
