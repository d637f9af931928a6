use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Instant;

use event_manager::{EventManager, SubscriberOps as _};

use super::*;

const DATA: u64 = 0;
const INTERRUPT_ENABLE: u64 = 1;
const IDENTITY: u64 = 2;
const MODEM_CONTROL: u64 = 4;
const LINE_STATUS: u64 = 5;
const DATA_READY: u8 = 1;

/// A serial device in an event loop, without a machine around it.
struct Wired {
    serial: Arc<Mutex<Serial>>,
    line: EventFd,
    events: EventManager<SerialSubscriber>,
}

fn wired(output: Option<OwnedFd>, input: Option<OwnedFd>) -> Wired {
    let line = EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd");
    let console = Console::new(output, input).expect("a console");
    let clone = line.try_clone().expect("a second descriptor");
    let serial = Arc::new(Mutex::new(Serial::new(clone, console)));
    let mut events = EventManager::new().expect("an event loop");
    events.add_subscriber(SerialSubscriber::new(serial.clone()));
    Wired {
        serial,
        line,
        events,
    }
}

impl Wired {
    fn read(&self, register: u64) -> u8 {
        let mut out = [0xff];
        self.serial.lock().read(register, &mut out);
        out[0]
    }

    fn write(&self, register: u64, value: u8) {
        assert_eq!(self.serial.lock().write(register, &[value]), Effect::None);
    }

    /// Runs the loop until nothing is ready; the number of events served.
    fn settle(&mut self) -> usize {
        let mut served = 0;
        loop {
            match self.events.run_with_timeout(0).expect("the loop runs") {
                0 => return served,
                count => served += count,
            }
        }
    }

    fn interrupted(&self) -> bool {
        self.line.read().is_ok()
    }

    /// What Linux's interrupt handler takes out of the FIFO.
    fn receive(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.read(LINE_STATUS) & DATA_READY != 0 {
            bytes.push(self.read(DATA));
        }
        bytes
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (reader.into(), writer.into())
}

#[test]
fn output_reaches_the_sink_in_order() {
    let (reader, writer) = pipe();
    let mut w = wired(Some(writer), None);
    for &byte in b"hello" {
        w.write(DATA, byte);
    }
    w.settle();
    let mut out = [0; 8];
    let count = File::from(reader).read(&mut out).expect("a pipe reads");
    assert_eq!(&out[..count], b"hello");
}

#[test]
fn a_byte_that_nothing_waits_before_needs_no_event_loop() {
    let (reader, writer) = pipe();
    let port = wired(Some(writer), None);
    port.write(0, b'x');
    let mut byte = [0];
    File::from(reader).read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

#[test]
fn a_pipe_that_nobody_reads_never_stops_the_guest() {
    let (_reader, writer) = pipe();
    let mut w = wired(Some(writer), None);
    w.write(INTERRUPT_ENABLE, 0b10);
    let bytes = (1 << 20) + (1 << 18);
    for i in 0..bytes {
        // A driver that waits for each interrupt would wait for ever here.
        assert!(w.interrupted(), "no interrupt before byte {i}");
        assert_eq!(w.read(IDENTITY) & 0x0f, 0x02);
        w.write(DATA, b'x');
        if i % 65536 == 0 {
            w.settle();
        }
    }
    assert!(w.settle() < 10, "a blocked sink does not spin the loop");
    assert!(w.serial.lock().dropped() > 1 << 16);
}

#[test]
fn a_failing_sink_still_gives_interrupts() {
    let (reader, writer) = pipe();
    drop(reader);
    let mut w = wired(Some(writer), None);
    w.write(INTERRUPT_ENABLE, 0b10);
    for _ in 0..1000 {
        assert!(w.interrupted());
        assert_eq!(w.read(IDENTITY) & 0x0f, 0x02);
        w.write(DATA, b'x');
        w.settle();
    }
    assert_eq!(
        w.settle(),
        0,
        "a pipe without a reader does not spin the loop"
    );
    assert_eq!(w.serial.lock().dropped(), 1000);
}

#[test]
fn pasted_input_survives_the_small_fifo() {
    let (reader, writer) = pipe();
    let mut w = wired(None, Some(reader));
    w.write(INTERRUPT_ENABLE, 0b01);
    let text: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let typing = std::thread::spawn({
        let text = text.clone();
        move || File::from(writer).write_all(&text)
    });
    let mut received = Vec::new();
    while received.len() < text.len() {
        w.events.run_with_timeout(1000).expect("the loop runs");
        if w.interrupted() {
            received.extend(w.receive());
        }
    }
    typing.join().expect("no panic").expect("all was written");
    assert!(received == text, "every byte, in order");
}

#[test]
fn a_full_fifo_leaves_the_loop_alone_until_the_guest_reads() {
    let (reader, writer) = pipe();
    let mut w = wired(None, Some(reader));
    let mut writer = File::from(writer);
    writer.write_all(&[b'a'; 200]).expect("a pipe holds that");
    w.settle();
    assert_eq!(w.settle(), 0, "nothing to do while the guest does not read");
    w.write(INTERRUPT_ENABLE, 0b01);
    let mut received = 0;
    while received < 200 {
        assert!(w.interrupted());
        received += w.receive().len();
        w.settle();
    }
    writer.write_all(b"b").expect("a pipe holds that");
    w.settle();
    assert_eq!(w.receive(), b"b");
}

#[test]
fn a_hang_up_of_the_input_is_seen_once() {
    let (reader, writer) = pipe();
    // As standard input is: another descriptor keeps the description open.
    let _stdin = reader.try_clone().expect("a second descriptor");
    let mut w = wired(None, Some(reader));
    let mut writer = File::from(writer);
    writer.write_all(b"last words").expect("a pipe holds that");
    drop(writer);
    w.settle();
    assert_eq!(w.receive(), b"last words");
    w.settle();
    assert_eq!(w.settle(), 0);
    // Still alive on the other side.
    w.write(DATA, b'x');
    w.settle();
}

#[test]
fn input_from_a_file_is_read_to_its_end() {
    let path = std::env::temp_dir().join(format!("coppice-serial-{}", std::process::id()));
    std::fs::write(&path, [b'f'; 500]).expect("a file");
    let file = File::open(&path).expect("the file");
    std::fs::remove_file(&path).expect("the file is ours");
    let mut w = wired(None, Some(file.into()));
    let mut received = 0;
    while received < 500 {
        w.settle();
        let bytes = w.receive().len();
        assert!(bytes > 0, "stuck after {received}");
        received += bytes;
    }
    w.settle();
    assert_eq!((received, w.receive().len()), (500, 0));
}

#[test]
fn input_waits_while_the_chip_loops_back() {
    let (reader, writer) = pipe();
    let mut w = wired(None, Some(reader));
    w.write(MODEM_CONTROL, 1 << 4);
    File::from(writer)
        .write_all(b"hi")
        .expect("a pipe holds that");
    w.settle();
    assert_eq!(w.receive(), b"");
    w.write(MODEM_CONTROL, 0);
    w.settle();
    assert_eq!(w.receive(), b"hi");
}

#[test]
fn no_spinning_when_a_terminal_hangs_up() {
    let (far, terminal) = crate::backends::console::tests::pty();
    let output = terminal.try_clone().expect("a second descriptor");
    let mut w = wired(Some(output), Some(terminal));
    w.write(DATA, b'x');
    w.settle();
    drop(far);
    w.settle();
    for _ in 0..100 {
        w.write(DATA, b'y');
        w.settle();
    }
    let begin = Instant::now();
    assert_eq!(w.events.run_with_timeout(50).expect("the loop runs"), 0);
    assert!(begin.elapsed().as_millis() >= 50, "the loop slept");
}

#[test]
fn wide_accesses_mean_nothing() {
    let w = wired(None, None);
    let mut out = [0xff; 2];
    w.serial.lock().read(LINE_STATUS, &mut out);
    assert_eq!(out, [0xff; 2]);
    assert_eq!(w.serial.lock().write(DATA, &[1, 2]), Effect::None);
}

#[test]
fn a_restored_port_raises_its_interrupt_when_the_vcpus_are_about_to_run() {
    let (reader, writer) = pipe();
    let mut w = wired(None, Some(reader));
    w.write(INTERRUPT_ENABLE, 0b01);
    File::from(writer)
        .write_all(b"hi")
        .expect("a pipe holds that");
    w.settle();

    let child = wired(None, None);
    child
        .serial
        .lock()
        .restore(w.serial.lock().save())
        .expect("it is sound");
    assert!(!child.interrupted(), "not before the controllers");
    child.serial.lock().after_restore();
    assert!(child.interrupted());
    assert_eq!(child.receive(), b"hi");

    let quiet = wired(None, None);
    quiet
        .serial
        .lock()
        .restore(child.serial.lock().save())
        .expect("it is sound");
    quiet.serial.lock().after_restore();
    assert!(!quiet.interrupted(), "there is no reason left");
}

#[test]
fn input_flows_into_a_restored_port_as_the_guest_reads() {
    let (reader, writer) = pipe();
    let mut w = wired(None, Some(reader));
    File::from(writer)
        .write_all(&[b'a'; 100])
        .expect("a pipe holds that");
    w.settle();
    let state = w.serial.lock().save();

    // Its FIFO is full from the start.
    let (reader, writer) = pipe();
    let line = EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd");
    let console = Console::new(None, Some(reader)).expect("a console");
    let mut serial = Serial::new(line.try_clone().expect("a second descriptor"), console);
    serial.restore(state).expect("it is sound");
    let serial = Arc::new(Mutex::new(serial));
    let mut events = EventManager::new().expect("an event loop");
    events.add_subscriber(SerialSubscriber::new(serial.clone()));
    let mut child = Wired {
        serial,
        line,
        events,
    };
    File::from(writer)
        .write_all(b"b")
        .expect("a pipe holds that");
    child.settle();
    let old = child.receive();
    assert!(old.len() >= 64 && old.iter().all(|&byte| byte == b'a'));
    child.settle();
    assert_eq!(child.receive(), b"b");
}
