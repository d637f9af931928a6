//! The one descriptor that the event loop watches for the device: an epoll
//! instance that holds the listener, every stream, a timer and a bell.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

/// Names a watched stream. Never used twice, so that an event which was
/// fetched before its stream was closed cannot be taken for another's.
pub type Token = u64;

const LISTENER: Token = 0;
const TIMER: Token = 1;
const BELL: Token = 2;
const FIRST_STREAM: Token = 3;

/// How often deadlines are looked at while there are any.
const TICK: Duration = Duration::from_secs(1);

/// Events fetched at once. More make the event loop come back.
const BATCH: usize = 64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Clients wait to be accepted.
    Listener,
    /// Time to look at deadlines.
    Tick,
    /// The device asked to be called again.
    Bell,
    /// Something about a stream.
    Stream {
        token: Token,
        /// It may have something to receive, or have ended.
        readable: bool,
        /// It may have room.
        has_room: bool,
        /// Both of its directions have ended.
        hung_up: bool,
    },
}

/// See the module's description.
pub struct Watch {
    epoll: Epoll,
    timer: TimerFd,
    ticking: bool,
    bell: EventFd,
    next: Token,
}

impl Watch {
    /// A watch over `listener`.
    ///
    /// # Errors
    /// The host is out of descriptors or memory.
    pub fn new(listener: BorrowedFd<'_>) -> io::Result<Self> {
        let watch = Self {
            epoll: Epoll::new()?,
            timer: TimerFd::new()?,
            ticking: false,
            bell: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            next: FIRST_STREAM,
        };
        let add = |fd, events, token| {
            watch
                .epoll
                .ctl(ControlOperation::Add, fd, EpollEvent::new(events, token))
        };
        add(listener.as_raw_fd(), EventSet::IN, LISTENER)?;
        // The timer is set anew at each tick, so that its edge says enough and
        // nobody has to read it.
        let edge = EventSet::IN | EventSet::EDGE_TRIGGERED;
        add(watch.timer.as_raw_fd(), edge, TIMER)?;
        add(watch.bell.as_raw_fd(), EventSet::IN, BELL)?;
        Ok(watch)
    }

    /// What has happened since the last call, at most [`BATCH`] things.
    pub fn events(&mut self) -> Vec<Event> {
        let mut fetched = [EpollEvent::default(); BATCH];
        // No wait can be interrupted that does not wait.
        let count = self.epoll.wait(0, &mut fetched).unwrap_or(0);
        fetched[..count]
            .iter()
            .map(|event| match event.data() {
                LISTENER => Event::Listener,
                TIMER => {
                    self.ticking = false;
                    Event::Tick
                }
                BELL => {
                    // It rang, so there is something to read; if not, all the
                    // better.
                    let _ = self.bell.read();
                    Event::Bell
                }
                token => stream_event(token, event.event_set()),
            })
            .collect()
    }

    /// Starts to watch `stream` for bytes and for its end.
    ///
    /// # Errors
    /// The host is out of memory or watches.
    pub fn add(&mut self, stream: BorrowedFd<'_>) -> io::Result<Token> {
        let token = self.next;
        let event = EpollEvent::new(stream_interest(false), token);
        self.epoll
            .ctl(ControlOperation::Add, stream.as_raw_fd(), event)?;
        self.next += 1;
        Ok(token)
    }

    /// Watches `stream` for room too, or not any more. If it has room already,
    /// that is an event.
    pub fn want_room(&self, stream: BorrowedFd<'_>, token: Token, wanted: bool) {
        let event = EpollEvent::new(stream_interest(wanted), token);
        self.epoll
            .ctl(ControlOperation::Modify, stream.as_raw_fd(), event)
            .expect("the stream was added, and is only taken out by closing it");
    }

    /// Watches the listener, or leaves its clients waiting for now.
    pub fn want_clients(&self, listener: BorrowedFd<'_>, wanted: bool) {
        let events = if wanted {
            EventSet::IN
        } else {
            EventSet::empty()
        };
        self.epoll
            .ctl(
                ControlOperation::Modify,
                listener.as_raw_fd(),
                EpollEvent::new(events, LISTENER),
            )
            .expect("the listener is watched for as long as the device exists");
    }

    /// Makes sure that a [`Event::Tick`] comes within the next second.
    pub fn tick(&mut self) {
        if !self.ticking {
            self.timer
                .reset(TICK, None)
                .expect("one second is a valid time");
            self.ticking = true;
        }
    }

    /// Makes sure that the event loop comes back at once.
    pub fn ring(&self) {
        // It fails only if the bell is ringing to the brim already.
        let _ = self.bell.write(1);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.epoll.as_raw_fd()) }
    }
}

/// Edges only: a stream that cannot be served now must not wake the event loop
/// again and again, not even when its other end has closed, which epoll reports
/// whether it is wanted or not.
fn stream_interest(room: bool) -> EventSet {
    let always = EventSet::IN | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
    if room { always | EventSet::OUT } else { always }
}

fn stream_event(token: Token, events: EventSet) -> Event {
    let gone = EventSet::HANG_UP | EventSet::ERROR;
    Event::Stream {
        token,
        readable: events.intersects(EventSet::IN | EventSet::READ_HANG_UP | gone),
        has_room: events.contains(EventSet::OUT),
        hung_up: events.contains(EventSet::HANG_UP),
    }
}
