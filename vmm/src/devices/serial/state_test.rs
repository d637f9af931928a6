use super::super::uart::Wants;
use super::*;
use crate::state;

const DATA: u64 = 0;
const INTERRUPT_ENABLE: u64 = 1;
const IDENTITY: u64 = 2;
const LINE_CONTROL: u64 = 3;
const MODEM_CONTROL: u64 = 4;
const SCRATCH: u64 = 7;

/// A chip no register of which is as it was at power-on.
fn used() -> Uart {
    let mut uart = Uart::new();
    uart.write(LINE_CONTROL, 0x80);
    uart.write(DATA, 0x34);
    uart.write(INTERRUPT_ENABLE, 0x12);
    uart.write(LINE_CONTROL, 0x1b);
    uart.write(IDENTITY, 1);
    uart.write(MODEM_CONTROL, 0x0b);
    uart.write(SCRATCH, 0xa5);
    uart.receive(b"hello");
    uart.write(INTERRUPT_ENABLE, 3);
    uart
}

fn v1(uart: &Uart) -> UartV1 {
    let UartState::V1(state) = uart.save();
    state
}

#[test]
fn a_restored_chip_is_the_one_that_was_saved() {
    let mut saved = used();
    let mut restored = Uart::try_from(saved.save()).unwrap();
    assert_eq!(restored.save(), saved.save());
    assert_ne!(restored.save(), Uart::new().save());
    for uart in [&mut saved, &mut restored] {
        assert_eq!(uart.read(IDENTITY).0, 0xc4, "received data first");
        for byte in b"hello" {
            assert_eq!(uart.read(DATA).0, *byte);
        }
        assert_eq!(uart.read(IDENTITY).0, 0xc2, "then the empty transmitter");
        assert_eq!(uart.read(IDENTITY).0, 0xc1);
        assert_eq!(uart.receive(b"x"), (1, true));
    }
    // Nothing new happens by itself: the reasons were known.
    let mut restored = Uart::try_from(used().save()).unwrap();
    assert_eq!(restored.write(SCRATCH, 0), Wants::default());
}

#[test]
fn what_the_chip_cannot_be_is_refused() {
    let refused = |damage: fn(&mut UartV1), text: &str| {
        let mut state = v1(&used());
        damage(&mut state);
        let error = Uart::try_from(UartState::V1(state)).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("serial") && error.contains(text), "{error}");
    };
    refused(|s| s.received = vec![0; FIFO + 1], "65 received bytes");
    refused(
        |s| s.interrupt_enable = 0x10,
        "interrupt enable register is 0x10",
    );
    refused(|s| s.modem_control = 0xff, "modem control register is 0xff");
    let mut state = v1(&used());
    state.received = vec![0; FIFO];
    assert_eq!(Uart::try_from(UartState::V1(state)).ok().unwrap().room(), 0);
}

#[test]
fn damaged_bytes_never_harm() {
    let bytes = state::encode("the chip", &used().save()).unwrap();
    for len in 0..bytes.len() {
        state::decode::<UartState>("the chip", &bytes[..len]).expect_err("cut");
    }
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(state) = state::decode::<UartState>("the chip", &bytes)
            && let Ok(mut uart) = Uart::try_from(state)
        {
            for register in 0..8 {
                uart.read(register);
                uart.write(register, 0xff);
            }
        }
    }
}
