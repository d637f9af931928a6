//! The terminal's raw mode, undone on every way out of the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;

use parking_lot::Mutex;

use super::calls;

/// The terminal that is in raw mode and its settings from before. A static,
/// because a panic or an exit somewhere else has to find it.
static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

struct Saved {
    terminal: OwnedFd,
    settings: libc::termios,
}

/// Holds a terminal in raw mode; dropping it restores the terminal.
pub(super) struct RawMode(());

impl RawMode {
    /// Puts `terminal` into raw mode, so that each key reaches the guest,
    /// Ctrl-C included.
    pub(super) fn enter(terminal: OwnedFd) -> io::Result<Self> {
        static HOOKS: Once = Once::new();
        HOOKS.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                previous(panic);
            }));
            extern "C" fn at_exit() {
                restore();
            }
            calls::on_exit(at_exit);
        });
        let settings = calls::get_settings(terminal.as_fd())?;
        let mut saved = SAVED.lock();
        calls::set_settings(terminal.as_fd(), &calls::raw(settings))?;
        *saved = Some(Saved { terminal, settings });
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is in raw mode. Harmless at any time; for ways
/// out of the process that neither return from `main` nor call `exit`.
pub fn restore() {
    // Whoever holds the lock is between two lines of this file and panicked
    // there or is about to finish: not worth a deadlock.
    let Some(mut saved) = SAVED.try_lock() else {
        return;
    };
    if let Some(saved) = saved.take()
        // In the background the terminal is someone else's now, with settings
        // of their own.
        && !calls::is_background(saved.terminal.as_fd())
    {
        // If it fails the terminal is gone.
        let _ = calls::set_settings(saved.terminal.as_fd(), &saved.settings);
    }
}
