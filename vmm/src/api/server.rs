//! The listening socket and its connections.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Answer;
use super::connection::{Connection, Fate};
use super::router::Request;
use super::socket::{OwnedSocket, SocketError};

/// Most clients at a time. Whoever comes when all places are taken gets the
/// place of the one that has been silent for longest, so that forgotten
/// connections cannot lock anybody out.
const MAX_CONNECTIONS: usize = 32;
/// The listener's token in the epoll set; connections count up from 1.
const LISTENER: u64 = 0;

/// Serves the API to any number of clients without ever waiting for one.
///
/// It has an epoll descriptor of its own ([`AsRawFd`]), which is readable when
/// [`Server::serve`] has something to do. Dropping the server removes the
/// socket file.
pub struct Server {
    socket: OwnedSocket,
    epoll: Epoll,
    max_body: usize,
    connections: BTreeMap<u64, Client>,
    /// Counts connections and their activity.
    clock: u64,
    /// Given up for a moment when descriptors run out; see [`Server::turn_away`].
    spare: Option<File>,
}

struct Client {
    connection: Connection,
    /// What the epoll set watches for.
    watched: EventSet,
    /// The clock when it last did something.
    active: u64,
}

impl Server {
    /// Listens on a Unix socket at `path`, for bodies of up to `max_body` bytes.
    ///
    /// # Errors
    /// The socket cannot be made; see [`SocketError`].
    pub fn bind(path: &Path, max_body: usize) -> Result<Server, SocketError> {
        let failed = |source| SocketError::Io {
            what: "watch the API socket",
            path: path.to_owned(),
            source,
        };
        let socket = OwnedSocket::bind(path)?;
        let epoll = Epoll::new().map_err(failed)?;
        let listening = EpollEvent::new(EventSet::IN, LISTENER);
        epoll
            .ctl(
                ControlOperation::Add,
                socket.listener().as_raw_fd(),
                listening,
            )
            .map_err(failed)?;
        Ok(Server {
            socket,
            epoll,
            max_body,
            connections: BTreeMap::new(),
            clock: LISTENER,
            spare: File::open("/dev/null").ok(),
        })
    }

    /// Accepts who waits, reads what was sent, has `handle` carry out each
    /// request and sends the answers, all as far as it goes without waiting.
    pub fn serve(&mut self, handle: &mut dyn FnMut(Request) -> Option<Answer>) {
        let mut ready = [EpollEvent::default(); MAX_CONNECTIONS + 1];
        // A failure (EINTR) is no loss: the descriptor stays readable.
        let count = self.epoll.wait(0, &mut ready).unwrap_or(0);
        for event in &ready[..count] {
            match event.data() {
                LISTENER => self.accept(),
                token => self.serve_client(token, handle),
            }
        }
    }

    /// Gives the client that was told to wait its answer, and goes on
    /// with what it has sent since. One that has gone is not missed.
    pub fn answer_later(
        &mut self,
        answer: &Answer,
        handle: &mut dyn FnMut(Request) -> Option<Answer>,
    ) {
        let waiting: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, client)| client.connection.is_waiting())
            .map(|(&token, _)| token)
            .collect();
        for token in waiting {
            if let Some(client) = self.connections.get_mut(&token) {
                client.connection.answer_later(answer);
            }
            self.serve_client(token, handle);
        }
    }

    fn serve_client(&mut self, token: u64, handle: &mut dyn FnMut(Request) -> Option<Answer>) {
        self.clock += 1;
        // It may have lost its place to a newcomer within this very turn.
        let Some(client) = self.connections.get_mut(&token) else {
            return;
        };
        client.active = self.clock;
        let mut fate = client.connection.serve(handle);
        let interest = client.connection.interest();
        if fate == Fate::Goes && interest != client.watched {
            client.watched = interest;
            let event = EpollEvent::new(interest, token);
            let fd = client.connection.as_raw_fd();
            if self.epoll.ctl(ControlOperation::Modify, fd, event).is_err() {
                fate = Fate::Ends;
            }
        }
        if fate == Fate::Ends {
            // Closing the descriptor also takes it out of the epoll set.
            self.connections.remove(&token);
        }
    }

    fn accept(&mut self) {
        // A bound, so that a flood of clients leaves time for everything else.
        for _ in 0..MAX_CONNECTIONS {
            match self.socket.listener().accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.add(stream) {
                        log::warn!("lost a client of the API: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    self.turn_away();
                }
                // Others are the fate of one client that is gone (ECONNABORTED).
                Err(error) => log::debug!("a client of the API did not arrive: {error}"),
            }
        }
    }

    fn add(&mut self, stream: std::os::unix::net::UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        if self.connections.len() >= MAX_CONNECTIONS {
            let silent = self
                .connections
                .iter()
                .min_by_key(|(_, client)| client.active);
            if let Some((&token, _)) = silent {
                log::info!("closed the API connection that was silent for longest");
                self.connections.remove(&token);
            }
        }
        self.clock += 1;
        let token = self.clock;
        let connection = Connection::new(stream, self.max_body);
        let watched = connection.interest();
        let event = EpollEvent::new(watched, token);
        self.epoll
            .ctl(ControlOperation::Add, connection.as_raw_fd(), event)?;
        self.connections.insert(
            token,
            Client {
                connection,
                watched,
                active: token,
            },
        );
        Ok(())
    }

    /// No descriptor is left for a client. It must still be taken out of the
    /// queue, or the listener would stay readable and this process spin.
    fn turn_away(&mut self) {
        log::warn!("closed an API connection: the limit of open files is reached");
        self.spare = None;
        drop(self.socket.listener().accept());
        self.spare = File::open("/dev/null").ok();
    }
}

impl AsRawFd for Server {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

#[cfg(test)]
#[path = "server_test.rs"]
mod tests;
