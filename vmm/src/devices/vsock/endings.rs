//! What is kept of connections that have ended.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::backlog::Backlog;
use super::muxer::Ports;
use super::watch::Token;
use crate::backends::unix::Stream;

/// Ended connections that wait for the guest's confirmation.
const MAX_CLOSING: usize = 4096;

/// How long the guest may take to confirm the end of a connection; as long as
/// Linux gives the other side of its own.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a host may take nothing of what a closed connection left behind.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(300);

/// What connections that the guest has closed still have to give to the host.
#[derive(Default)]
pub struct Orphans(BTreeMap<Token, Orphan>);

struct Orphan {
    stream: Stream,
    backlog: Backlog,
    deadline: Instant,
}

impl Orphans {
    /// How many there are; each has a stream.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the stream that `token` names is one.
    pub fn has(&self, token: Token) -> bool {
        self.0.contains_key(&token)
    }

    /// Takes in `stream`, which is watched for room as `token`, until it has
    /// taken all of `backlog`.
    pub fn adopt(&mut self, token: Token, stream: Stream, backlog: Backlog, now: Instant) {
        let orphan = Orphan {
            stream,
            backlog,
            deadline: now + ORPHAN_TIMEOUT,
        };
        self.0.insert(token, orphan);
    }

    /// The stream that `token` names has room.
    pub fn flush(&mut self, token: Token, now: Instant) {
        let Some(orphan) = self.0.get_mut(&token) else {
            return;
        };
        let before = orphan.backlog.len();
        let flushed = orphan.backlog.flush(&orphan.stream);
        if flushed.is_err() || orphan.backlog.is_empty() {
            self.0.remove(&token);
        } else if orphan.backlog.len() < before {
            orphan.deadline = now + ORPHAN_TIMEOUT;
        }
    }

    /// Gives up on the oldest; `false` if there is none.
    pub fn drop_oldest(&mut self) -> bool {
        self.0.pop_first().is_some()
    }

    /// Gives up on those whose time is up.
    pub fn tick(&mut self, now: Instant) {
        self.0.retain(|_, orphan| now < orphan.deadline);
    }
}

/// Connections that the host ended, until the guest confirms.
#[derive(Default)]
pub struct Closing(HashMap<Ports, Instant>);

impl Closing {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `ports` is one.
    pub fn has(&self, ports: Ports) -> bool {
        self.0.contains_key(&ports)
    }

    /// Remembers `ports`; `false` if there are too many to remember another.
    pub fn insert(&mut self, ports: Ports, now: Instant) -> bool {
        let fits = self.0.len() < MAX_CLOSING;
        if fits {
            self.0.insert(ports, now + CLOSE_TIMEOUT);
        }
        fits
    }

    /// Gives the guest more time: it is still reading what it has.
    pub fn postpone(&mut self, ports: Ports, now: Instant) {
        if let Some(deadline) = self.0.get_mut(&ports) {
            *deadline = now + CLOSE_TIMEOUT;
        }
    }

    /// Forgets `ports`.
    pub fn remove(&mut self, ports: Ports) {
        self.0.remove(&ports);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets those whose time is up and returns them.
    pub fn tick(&mut self, now: Instant) -> Vec<Ports> {
        self.0
            .extract_if(|_, deadline| *deadline <= now)
            .map(|(ports, _)| ports)
            .collect()
    }
}
