//! The local terminal: its size, and raw mode that is always undone.

use std::io;
use std::sync::Once;

use coppice_agent_protocol::WindowSize;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// What a command gets as its terminal's size if there is none here.
const USUAL: WindowSize = WindowSize { rows: 24, cols: 80 };

nix::ioctl_read_bad!(
    /// ioctl_tty(2), TIOCGWINSZ.
    get_window_size,
    libc::TIOCGWINSZ,
    libc::winsize
);

/// The size of the terminal on standard output, error or input.
pub fn window_size() -> WindowSize {
    [1, 2, 0].into_iter().find_map(size_of).unwrap_or(USUAL)
}

fn size_of(fd: i32) -> Option<WindowSize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the call writes one winsize, which `size` has room for.
    unsafe { get_window_size(fd, &raw mut size) }.ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(WindowSize {
        rows: size.ws_row,
        cols: size.ws_col,
    })
}

/// Standard input's terminal in raw mode until this value goes.
#[derive(Debug)]
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Puts the terminal in raw mode; `None` if standard input is none.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        let Ok(before) = tcgetattr(&stdin) else {
            return Ok(None);
        };
        undo_on_panic(&before);
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// A panic ends the process without dropping anything.
fn undo_on_panic(before: &Termios) {
    static ONCE: Once = Once::new();
    let before: libc::termios = before.clone().into();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &Termios::from(before));
            report(panic);
        }));
    });
}
