//! Readiness of descriptors, each known by a token.
//!
//! Everything is edge-triggered: an event sets a flag at its owner, the owner
//! works until the kernel says `EAGAIN` and then clears it. So a pipe that is
//! not read for want of room costs no system calls and no wake-ups.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::slab::Key;

/// Which of a session's descriptors an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The stream to the host.
    Link,
    /// The pipe on which a new process reports why it cannot start.
    Report,
    /// The command's standard input.
    Stdin,
    /// The command's standard output, or its terminal.
    Stdout,
    /// The command's standard error.
    Stderr,
}

/// Whom an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// New streams wait.
    Listener,
    /// Signals wait.
    Signals,
    /// The stream that tells the host that the agent listens.
    Ready,
    /// A session's descriptor.
    Session(Key, Role),
    /// Output that nobody wants any more.
    Sink(Key),
}

const ROLES: [Role; 5] = [
    Role::Link,
    Role::Report,
    Role::Stdin,
    Role::Stdout,
    Role::Stderr,
];
const SESSION: u64 = 8;
const SINK: u64 = 3;

impl Token {
    /// Bits 0–31 generation, 32–55 index, 56–63 what it is.
    fn pack(self) -> u64 {
        let (tag, key) = match self {
            Self::Listener => (0, None),
            Self::Signals => (1, None),
            Self::Ready => (2, None),
            Self::Sink(key) => (SINK, Some(key)),
            Self::Session(key, role) => (SESSION + role as u64, Some(key)),
        };
        let key = key.map_or(0, |key| {
            u64::from(key.index & 0xff_ffff) << 32 | u64::from(key.generation)
        });
        tag << 56 | key
    }

    fn unpack(word: u64) -> Option<Self> {
        let key = Key {
            index: (word >> 32) as u32 & 0xff_ffff,
            generation: word as u32,
        };
        match word >> 56 {
            0 => Some(Self::Listener),
            1 => Some(Self::Signals),
            2 => Some(Self::Ready),
            SINK => Some(Self::Sink(key)),
            tag => {
                let role = ROLES.get(usize::try_from(tag.checked_sub(SESSION)?).ok()?)?;
                Some(Self::Session(key, *role))
            }
        }
    }
}

/// What became possible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The set of watched descriptors. A descriptor leaves it by being closed.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Epoll,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll })
    }

    pub(crate) fn watch(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.add(fd, event(token))?)
    }

    /// Gives a watched descriptor another owner, who is told at once if it
    /// is ready.
    pub(crate) fn reassign(&self, fd: &OwnedFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.modify(fd, &mut event(token))?)
    }

    /// Waits for events; none if `timeout` passes or a signal interrupts.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Event>> {
        let timeout = timeout.map_or(EpollTimeout::NONE, |timeout| {
            // Rounded up, so that the deadline has passed when this returns.
            let millis = timeout.as_micros().div_ceil(1000).min(60_000) as u16;
            EpollTimeout::from(millis)
        });
        let mut buffer = [EpollEvent::empty(); 256];
        let count = match self.epoll.wait(&mut buffer, timeout) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let gone = EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let events = buffer[..count].iter().filter_map(|raw| {
            let flags = raw.events();
            Some(Event {
                token: Token::unpack(raw.data())?,
                readable: flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | gone),
                writable: flags.intersects(EpollFlags::EPOLLOUT | gone),
            })
        });
        Ok(events.collect())
    }
}

fn event(token: Token) -> EpollEvent {
    EpollEvent::new(
        EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET,
        token.pack(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_packing() {
        let key = Key {
            index: 0xff_fffe,
            generation: u32::MAX,
        };
        let mut tokens = vec![
            Token::Listener,
            Token::Signals,
            Token::Ready,
            Token::Sink(key),
        ];
        tokens.extend(ROLES.map(|role| Token::Session(key, role)));
        for token in tokens {
            assert_eq!(Token::unpack(token.pack()), Some(token));
        }
        assert_eq!(Token::unpack(u64::MAX), None);
    }
}
