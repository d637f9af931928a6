use super::*;

struct Keyboard {
    chip: I8042,
    line: EventFd,
}

fn keyboard() -> Keyboard {
    let line = EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd");
    let chip = I8042::new(line.try_clone().expect("a second descriptor of it"));
    Keyboard { chip, line }
}

impl Keyboard {
    fn status(&mut self) -> u8 {
        let mut out = [0xff];
        self.chip.read(COMMAND, &mut out);
        out[0]
    }

    fn data(&mut self) -> u8 {
        let mut out = [0xff];
        self.chip.read(DATA, &mut out);
        out[0]
    }

    /// Everything that waits.
    fn drain(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.status() & STATUS_OUTPUT_FULL != 0 {
            bytes.push(self.data());
        }
        bytes
    }

    fn command(&mut self, command: u8) -> Effect {
        self.chip.write(COMMAND, &[command])
    }

    fn write(&mut self, data: u8) -> Effect {
        self.chip.write(DATA, &[data])
    }

    fn interrupted(&self) -> bool {
        self.line.read().is_ok()
    }
}

#[test]
fn every_way_to_reset_resets() {
    let mut k = keyboard();
    assert_eq!(k.command(0xfe), Effect::Reset, "reboot=k");
    assert_eq!(k.command(0xf0), Effect::Reset);
    assert_eq!(k.command(0xff), Effect::None, "pulses nothing");
    k.command(0xd1);
    assert_eq!(k.write(0xdf), Effect::None, "opens gate A20");
    k.command(0xd1);
    assert_eq!(k.write(0xfe), Effect::Reset);
    assert_eq!(k.write(0xfe), Effect::None, "a keyboard command now");
}

#[test]
fn linux_finds_a_controller_a_keyboard_and_no_mouse() {
    let mut k = keyboard();
    k.command(0xaa);
    assert_eq!(k.drain(), [0x55]);
    k.command(0x20);
    let config = k.data();
    k.command(0x60);
    k.write(config & !CONFIG_INTERRUPT);
    k.command(0x20);
    assert_eq!(k.drain(), [config & !CONFIG_INTERRUPT]);
    // Mouse: the loop answers at once, not as the mouse; the test fails.
    k.command(0xd3);
    k.write(0x5a);
    assert_eq!(k.status() & 1 << 5, 0);
    assert_eq!(k.drain(), [0x00]);
    k.command(0xa9);
    assert_eq!(k.drain(), [0x01]);
    // Keyboard.
    k.write(0xf2);
    assert_eq!(k.drain(), [ACK, 0xab, 0x41]);
    for (command, parameter) in [(0xed, 7), (0xf3, 0), (0xf0, 2)] {
        k.write(command);
        assert_eq!(k.drain(), [ACK]);
        k.write(parameter);
        assert_eq!(k.drain(), [ACK], "parameter of {command:#x}");
    }
    k.write(0xff);
    assert_eq!(k.drain(), [ACK, 0xaa]);
    k.write(0x01);
    assert_eq!(k.drain(), [RESEND]);
}

#[test]
fn ctrl_alt_del_is_an_interrupt_for_each_byte() {
    let mut k = keyboard();
    k.chip.ctrl_alt_del();
    for expected in CTRL_ALT_DEL_SET_1 {
        assert!(k.interrupted());
        assert_eq!(k.data(), expected);
    }
    assert!(!k.interrupted());
    assert_eq!(k.status() & STATUS_OUTPUT_FULL, 0);
}

#[test]
fn ctrl_alt_del_speaks_the_set_that_the_driver_chose() {
    let mut k = keyboard();
    k.command(0x60);
    k.write(CONFIG_INTERRUPT);
    k.chip.ctrl_alt_del();
    assert_eq!(k.drain(), CTRL_ALT_DEL_SET_2);
}

#[test]
fn without_a_listener_no_key_stays_pressed_and_nothing_grows() {
    let mut k = keyboard();
    for _ in 0..1000 {
        k.chip.ctrl_alt_del();
    }
    let queued = k.drain();
    assert_eq!(queued.len() % CTRL_ALT_DEL_SET_1.len(), 0);
    assert!(queued.len() <= QUEUE);
    for _ in 0..1000 {
        k.write(0xee);
    }
    assert_eq!(k.drain().len(), QUEUE);
}

#[test]
fn a_byte_that_came_while_masked_is_signalled_on_unmasking() {
    let mut k = keyboard();
    k.command(0x60);
    k.write(CONFIG_TRANSLATE);
    k.chip.ctrl_alt_del();
    assert!(!k.interrupted());
    k.command(0x60);
    k.write(CONFIG_TRANSLATE | CONFIG_INTERRUPT);
    assert!(k.interrupted());
}

#[test]
fn wider_accesses_and_other_ports_mean_nothing() {
    let mut k = keyboard();
    assert_eq!(k.chip.write(COMMAND, &[0xfe, 0xfe]), Effect::None);
    assert_eq!(k.chip.write(2, &[0xfe]), Effect::None);
    let mut out = [0xff];
    k.chip.read(2, &mut out);
    assert_eq!(out, [0xff]);
    k.chip.read(PORT_B, &mut out);
    assert_eq!(out, [PORT_B_TIMER_HIGH]);
    let mut wide = [0xff; 2];
    k.chip.read(DATA, &mut wide);
    assert_eq!(wide, [0xff; 2]);
}
