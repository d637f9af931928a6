//! `coppice console`.

use std::io::Read;
use std::process::Stdio;

use crate::bed::{Bed, outcome, runs};
use crate::terminal::Screen;

#[test]
fn the_terminal_is_the_machines_until_the_escape() {
    let bed = Bed::new();
    let mut screen = Screen::new(24, 80);
    let before = screen.settings();
    let mut command = bed.coppice(["console"]);
    command.env("STAND_IN", "echo");
    let mut coppice = screen.start(command);
    screen.until("type Ctrl-] to leave");
    screen.until("stand-in: booting");
    let vmm = bed.vmm();
    // In raw mode each of them reaches the machine as it is.
    screen.enter("a\x03b\r");
    screen.until("a\x03b\r");
    screen.enter("not this \x1d nor that");
    assert_eq!(coppice.wait().expect("waited").code(), Some(0));
    assert_eq!(screen.settings(), before);
    assert!(!runs(vmm));
}

#[test]
fn input_that_is_no_terminal_may_end_first() {
    let bed = Bed::new();
    let mut command = bed.coppice(["console"]);
    command.env("STAND_IN", "echo");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut coppice = command.spawn().expect("started");
    drop(coppice.stdin.take());
    let mut booting = [0; 17];
    let stdout = coppice.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut booting).expect("shown");
    assert_eq!(&booting, b"stand-in: booting");
    crate::bed::signal(&coppice, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(coppice.wait().expect("waited").code(), Some(0));
}

#[test]
fn a_machine_that_dies_is_a_failure() {
    let bed = Bed::new();
    let mut command = bed.coppice(["console"]);
    command.env("STAND_IN", "dies");
    let (code, out, err) = outcome(command);
    assert_eq!((code, out.as_str()), (Some(125), "stand-in: booting\n"));
    assert!(
        err.contains("exit status: 3") && err.contains("not to be"),
        "{err}"
    );
}
