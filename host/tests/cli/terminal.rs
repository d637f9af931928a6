//! `-t`: the command's terminal and ours.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{Termios, tcgetattr};

use crate::bed::{Bed, outcome, signal};

/// A terminal with `coppice` in its foreground.
pub struct Screen {
    near: File,
    /// Held open, so that the settings can be read to the end.
    far: File,
    seen: String,
}

impl Screen {
    pub fn new(rows: u16, cols: u16) -> Self {
        let OpenptyResult { master, slave } = openpty(&size(rows, cols), None).expect("a pty");
        Self {
            near: master.into(),
            far: slave.into(),
            seen: String::new(),
        }
    }

    pub fn start(&self, mut command: Command) -> Child {
        let end = || self.far.try_clone().expect("cloned");
        command.stdin(end()).stdout(end()).stderr(end());
        let foreground = || {
            nix::unistd::setsid()?;
            // SAFETY: standard input is the terminal; the argument is a number.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(foreground) };
        command.spawn().expect("started")
    }

    pub fn settings(&self) -> Termios {
        tcgetattr(&self.far).expect("a terminal")
    }

    fn resize(&self, rows: u16, cols: u16) {
        // SAFETY: the call reads one winsize.
        let result =
            unsafe { libc::ioctl(self.near.as_raw_fd(), libc::TIOCSWINSZ, &size(rows, cols)) };
        assert_eq!(result, 0);
    }

    pub fn enter(&mut self, text: &str) {
        self.near.write_all(text.as_bytes()).expect("written");
    }

    /// Reads until `text` has been shown.
    pub fn until(&mut self, text: &str) {
        let mut chunk = [0; 4096];
        while !self.seen.contains(text) {
            let len = self.near.read(&mut chunk).expect("more is shown");
            self.seen += &String::from_utf8_lossy(&chunk[..len]);
        }
        let end = self.seen.find(text).expect("found") + text.len();
        self.seen.drain(..end);
    }
}

fn size(rows: u16, cols: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[test]
fn the_command_has_a_terminal_of_our_size_and_keys_go_to_it() {
    let bed = Bed::new();
    let mut screen = Screen::new(31, 124);
    let before = screen.settings();
    let script = "stty size; trap 'echo got INT' INT; trap 'stty size; exit 6' WINCH; echo up; \
                  while :; do sleep 0.1; done";
    let mut coppice = screen.start(bed.run(&["-it", "--", "sh", "-c", script]));
    screen.until("31 124\r\n");
    screen.until("up");
    assert_ne!(screen.settings(), before, "the terminal is not in raw mode");
    screen.enter("\x03");
    screen.until("got INT");
    screen.resize(40, 100);
    screen.until("40 100\r\n");
    assert_eq!(coppice.wait().expect("waited").code(), Some(6));
    assert_eq!(screen.settings(), before);
}

#[test]
fn the_terminal_is_itself_again_whatever_happens() {
    let bed = Bed::new();
    let script = "echo up; trap '' TERM; while :; do sleep 0.1; done";
    for what in ["vmm", "signals"] {
        let mut screen = Screen::new(24, 80);
        let before = screen.settings();
        let mut coppice = screen.start(bed.run(&["-it", "--", "sh", "-c", script]));
        screen.until("up");
        match what {
            "vmm" => {
                let vmm = nix::unistd::Pid::from_raw(bed.vmm());
                nix::sys::signal::kill(vmm, Signal::SIGKILL).expect("it runs");
                screen.until("the machine is gone");
            }
            _ => {
                // The first may be one with the second if it is not taken yet.
                signal(&coppice, Signal::SIGTERM);
                signal(&coppice, Signal::SIGINT);
            }
        }
        coppice.wait().expect("waited");
        assert_eq!(screen.settings(), before, "{what}");
    }
}

#[test]
fn without_i_the_terminal_stays_as_it_is() {
    let bed = Bed::new();
    let mut screen = Screen::new(24, 80);
    let before = screen.settings();
    let script = "tty; echo up; while :; do sleep 0.1; done";
    let mut coppice = screen.start(bed.run(&["-t", "--", "sh", "-c", script]));
    screen.until("/dev/pts/");
    screen.until("up");
    assert_eq!(screen.settings(), before);
    // Not raw: the terminal turns it into a signal to coppice.
    screen.enter("\x03");
    assert_eq!(coppice.wait().expect("waited").code(), Some(130));
}

#[test]
fn without_a_terminal_here_there_is_one_all_the_same() {
    let bed = Bed::new();
    let (code, out, _) =
        outcome(bed.run(&["-t", "--", "sh", "-c", "test -t 0; echo $?; stty size"]));
    assert_eq!((code, out.as_str()), (Some(0), "0\r\n24 80\r\n"));
}
