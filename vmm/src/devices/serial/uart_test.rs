use super::*;

/// A chip as Linux leaves it: FIFO on, no interrupt enabled.
fn uart() -> Uart {
    let mut uart = Uart::new();
    uart.write(INTERRUPT_IDENTITY, FIFO_ENABLE);
    uart
}

fn identity(uart: &mut Uart) -> u8 {
    uart.read(INTERRUPT_IDENTITY).0 & !IDENTITY_FIFO
}

#[test]
fn it_looks_like_a_16550a_to_a_driver_that_probes() {
    let mut uart = uart();
    assert_eq!(uart.read(INTERRUPT_IDENTITY).0 & 0xc0, 0xc0, "FIFOs work");
    // Linux's autoconfig: the upper half of the enable register reads zero.
    uart.write(INTERRUPT_ENABLE, 0xff);
    assert_eq!(uart.read(INTERRUPT_ENABLE).0, 0x0f);
    uart.write(INTERRUPT_ENABLE, 0);
    // And the modem's outputs come back in loopback.
    uart.write(MODEM_CONTROL, LOOPBACK | 0x0a);
    assert_eq!(uart.read(MODEM_STATUS).0 & 0xf0, 0x90);
    uart.write(MODEM_CONTROL, 0);
    assert_eq!(uart.read(MODEM_STATUS).0, MODEM_READY);
    uart.write(SCRATCH, 0xa5);
    assert_eq!(uart.read(SCRATCH).0, 0xa5);
}

#[test]
fn the_divisor_hides_data_and_interrupt_enable() {
    let mut uart = uart();
    uart.write(INTERRUPT_ENABLE, ENABLE_RECEIVED);
    uart.write(LINE_CONTROL, DIVISOR_ACCESS | 0b11);
    assert_eq!(uart.write(DATA, 1).transmit, None);
    uart.write(INTERRUPT_ENABLE, 2);
    assert_eq!((uart.read(DATA).0, uart.read(INTERRUPT_ENABLE).0), (1, 2));
    uart.write(LINE_CONTROL, 0b11);
    assert_eq!(uart.read(INTERRUPT_ENABLE).0, ENABLE_RECEIVED);
    assert_eq!(uart.write(DATA, b'x').transmit, Some(b'x'));
}

#[test]
fn each_byte_sent_is_followed_by_an_interrupt_once_the_last_was_seen() {
    let mut uart = uart();
    assert!(!uart.write(DATA, b'a').interrupt, "masked");
    assert!(uart.write(INTERRUPT_ENABLE, ENABLE_EMPTY).interrupt);
    for _ in 0..1000 {
        assert_eq!(identity(&mut uart), IDENTITY_EMPTY);
        assert_eq!(identity(&mut uart), IDENTITY_NONE, "reading settles it");
        let wants = uart.write(DATA, b'b');
        assert!(wants.interrupt && wants.transmit == Some(b'b'));
    }
}

#[test]
fn input_that_arrived_while_masked_is_signalled_on_unmasking() {
    let mut uart = uart();
    uart.write(INTERRUPT_ENABLE, ENABLE_RECEIVED);
    assert_eq!(uart.receive(b"a"), (1, true));
    // The driver's printk path: mask, print, unmask.
    uart.write(INTERRUPT_ENABLE, 0);
    assert_eq!(uart.receive(b"b"), (1, false));
    assert_eq!(identity(&mut uart), IDENTITY_NONE);
    assert!(uart.write(INTERRUPT_ENABLE, ENABLE_RECEIVED).interrupt);
    assert_eq!(identity(&mut uart), IDENTITY_RECEIVED);
    assert_eq!((uart.read(DATA).0, uart.read(DATA).0), (b'a', b'b'));
    assert_eq!(identity(&mut uart), IDENTITY_NONE);
}

#[test]
fn received_data_is_more_urgent_than_an_empty_transmitter() {
    let mut uart = uart();
    uart.write(INTERRUPT_ENABLE, ENABLE_RECEIVED | ENABLE_EMPTY);
    uart.receive(b"a");
    assert_eq!(identity(&mut uart), IDENTITY_RECEIVED);
    uart.read(DATA);
    assert_eq!(identity(&mut uart), IDENTITY_EMPTY, "not forgotten");
}

#[test]
fn the_fifo_takes_what_it_holds_and_says_when_it_is_drained() {
    let mut uart = uart();
    assert_eq!(uart.receive(&[7; 100]).0, FIFO);
    assert_eq!((uart.room(), uart.receive(b"x").0), (0, 0));
    for _ in 1..FIFO {
        assert!(!uart.read(DATA).1.drained);
    }
    assert_eq!(uart.read(LINE_STATUS).0 & DATA_READY, DATA_READY);
    assert!(uart.read(DATA).1.drained);
    assert_eq!(uart.read(LINE_STATUS).0 & DATA_READY, 0);
    assert_eq!(uart.read(DATA), (0, Wants::default()), "empty reads zero");

    uart.receive(b"abc");
    let clear = FIFO_ENABLE | FIFO_CLEAR_RECEIVER;
    assert!(uart.write(INTERRUPT_IDENTITY, clear).drained);
    assert_eq!(uart.room(), FIFO);
}

#[test]
fn loopback_cuts_the_far_end_off() {
    let mut uart = uart();
    uart.write(MODEM_CONTROL, LOOPBACK);
    assert_eq!(uart.receive(b"far").0, 0);
    assert_eq!(uart.write(DATA, b'l').transmit, None);
    assert_eq!(uart.read(DATA).0, b'l');
    for _ in 0..2 * FIFO {
        uart.write(DATA, b'x');
    }
    assert_eq!(uart.room(), 0);
    assert!(
        uart.write(MODEM_CONTROL, 0).drained,
        "input is wanted again"
    );
}
