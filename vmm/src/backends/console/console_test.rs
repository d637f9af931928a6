use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmm_sys_util::tempdir::TempDir;

use super::*;

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (reader.into(), writer.into())
}

/// The two ends of a pseudo-terminal: the far one and the terminal itself.
pub(crate) fn pty() -> (File, OwnedFd) {
    let open = |path: &str| {
        fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(path)
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let master = open("/dev/ptmx");
    let unlock: libc::c_int = 0;
    let mut number: libc::c_uint = 0;
    // SAFETY: both requests read or write one integer behind a live reference.
    let rc = unsafe {
        libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock)
            | libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number)
    };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    let slave = open(&format!("/dev/pts/{number}"));
    (master, slave.into())
}

fn flags(fd: BorrowedFd<'_>) -> libc::c_int {
    // SAFETY: the request takes and returns integers only.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }
}

fn push(console: &Console, bytes: &[u8]) {
    for &byte in bytes {
        console.backlog.push(byte);
    }
}

fn is_local(settings: &libc::termios, flag: libc::tcflag_t) -> bool {
    settings.c_lflag & flag != 0
}

#[test]
fn a_shared_pipe_or_socket_keeps_its_flags() {
    let (_reader, writer) = pipe();
    let (_peer, socket) = UnixStream::pair().expect("a socket pair");
    let (_far, terminal) = pty();
    for fd in [writer, socket.into(), terminal] {
        let before = flags(fd.as_fd());
        let shared = fd.try_clone().expect("a second descriptor");
        let mut console = Console::new(Some(fd), None).expect("a console");
        push(&console, b"hello");
        assert_eq!(console.host.drain(), Drained::Empty);
        assert_eq!(flags(shared.as_fd()), before, "O_NONBLOCK would show here");
        assert_eq!(before & libc::O_NONBLOCK, 0);
    }
}

#[test]
fn a_full_pipe_drops_and_counts_and_resumes() {
    let (reader, writer) = pipe();
    let mut console = Console::new(Some(writer), None).expect("a console");
    // Far more than pipe and backlog hold, with nobody reading.
    let mut blocked = false;
    for _ in 0..10 << 20 {
        console.backlog.push(b'x');
    }
    for _ in 0..10 {
        blocked |= console.host.drain() == Drained::Blocked;
    }
    assert!(blocked);
    let dropped = console.backlog.dropped();
    assert_eq!(dropped, (10 << 20) - backlog::CAPACITY as u64);

    // Once someone reads, what was kept arrives whole.
    let mut reader = File::from(reader);
    let mut out = [0; 65536];
    let mut read = 0;
    while read < backlog::CAPACITY {
        read += reader.read(&mut out).expect("the pipe is read");
        console.host.drain();
    }
    assert_eq!(read, backlog::CAPACITY);
    push(&console, b"after");
    assert_eq!(console.host.drain(), Drained::Empty);
    let count = reader.read(&mut out).expect("the pipe is read");
    assert_eq!(&out[..count], b"after");
    assert_eq!(console.backlog.dropped(), dropped);
}

#[test]
fn a_pipe_that_cannot_be_opened_anew_is_written_without_waiting_all_the_same() {
    let (reader, writer) = pipe();
    let sink = Sink::chunked(writer.into()).expect("a sink");
    let mut written = 0;
    let full = loop {
        match sink.write(&[b'x'; 100_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    assert!(written > 0);
    let mut reader = File::from(reader);
    reader
        .read_exact(&mut vec![0; written])
        .expect("what was written");
    assert!(sink.write(b"x").is_ok(), "there is room again");
}

#[test]
fn a_failing_sink_costs_its_bytes_only() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full is there");
    let mut console = Console::new(Some(full.into()), None).expect("a console");
    push(&console, b"0123456789");
    assert_eq!(console.host.drain(), Drained::Empty);
    assert_eq!(console.backlog.dropped(), 10);

    let (reader, writer) = pipe();
    let mut console = Console::new(Some(writer), None).expect("a console");
    drop(reader);
    push(&console, b"0123");
    assert_eq!(console.host.drain(), Drained::Empty, "not stuck");
    assert_eq!(console.backlog.dropped(), 4);
}

#[test]
fn a_named_pipe_works_before_its_reader_comes() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.as_path().join("console");
    let c_path = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: the path is a NUL-terminated string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
    let mut console = Console::file(&path).expect("a console");
    push(&console, b"early");
    assert_eq!(console.host.drain(), Drained::Empty);
    let mut reader = File::open(&path).expect("a reader");
    let mut out = [0; 5];
    reader.read_exact(&mut out).expect("what was written");
    assert_eq!(&out, b"early");
}

#[test]
fn files_are_appended_to_and_errors_name_them() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.as_path().join("log");
    fs::write(&path, "old ").expect("a file");
    let mut console = Console::file(&path).expect("a console");
    push(&console, b"new");
    assert_eq!(console.host.drain(), Drained::Empty);
    assert_eq!(fs::read(&path).expect("the file"), b"old new");

    let missing = dir.as_path().join("no/such/log");
    let error = Console::file(&missing).err().expect("it cannot be opened");
    assert!(error.to_string().contains("no/such/log"), "{error}");
}

#[test]
fn the_end_waits_for_a_slow_reader_and_not_for_a_dead_one() {
    let (reader, writer) = pipe();
    let mut console = Console::new(Some(writer), None).expect("a console");
    let sent = 300_000;
    push(&console, &vec![b'x'; sent]);
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        File::from(reader).read_to_end(&mut all).map(|_| all.len())
    });
    console.host.finish(Duration::from_secs(10));
    drop(console);
    let read = reading.join().expect("the reader ends").expect("it reads");
    assert_eq!(read, sent);

    let (_reader, writer) = pipe();
    let mut console = Console::new(Some(writer), None).expect("a console");
    push(&console, &vec![b'x'; sent]);
    let begin = Instant::now();
    console.host.finish(Duration::from_millis(20));
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(console.backlog.dropped() > 0, "what was lost is counted");
}

#[test]
fn no_sink_means_no_wake_up_and_no_complaint() {
    let console = Console::nothing().expect("a console");
    push(&console, b"vanishes");
    assert!(console.backlog.wake_fd().read().is_err());
    assert_eq!(console.backlog.dropped(), 0);
}

#[test]
fn a_terminal_is_raw_while_the_console_lives() {
    let (mut far, terminal) = pty();
    let probe = terminal.try_clone().expect("a second descriptor");
    let cooked = calls::get_settings(probe.as_fd()).expect("settings");
    assert!(is_local(&cooked, libc::ICANON) && is_local(&cooked, libc::ISIG));
    let output = terminal.try_clone().expect("a second descriptor");
    let mut console = Console::new(Some(output), Some(terminal)).expect("a console");
    let raw = calls::get_settings(probe.as_fd()).expect("settings");
    assert!(!is_local(&raw, libc::ICANON) && !is_local(&raw, libc::ISIG | libc::ECHO));

    // A key arrives at once, Ctrl-C too.
    far.write_all(b"a\x03").expect("typing");
    assert_eq!(console.host.read_input(64), Available::Pending);
    assert_eq!(console.host.pending(), b"a\x03");
    console.host.taken(2);
    assert_eq!(console.host.read_input(64), Available::Nothing);

    drop(console);
    let after = calls::get_settings(probe.as_fd()).expect("settings");
    assert_eq!(after.c_lflag, cooked.c_lflag);
    assert_eq!(after.c_iflag, cooked.c_iflag);
    assert_eq!(after.c_oflag, cooked.c_oflag);
}

#[test]
fn a_hung_up_terminal_ends_the_input() {
    let (far, terminal) = pty();
    let mut console = Console::new(None, Some(terminal)).expect("a console");
    assert_eq!(console.host.read_input(64), Available::Nothing);
    drop(far);
    assert_eq!(console.host.read_input(64), Available::Ended);
    assert_eq!(console.host.read_input(64), Available::Ended);
}
