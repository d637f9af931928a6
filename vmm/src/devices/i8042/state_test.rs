use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::super::{COMMAND, CONFIG_INTERRUPT, CONFIG_TRANSLATE, DATA};
use super::*;
use crate::bus::{BusDevice as _, Effect};
use crate::state;

fn chip() -> (I8042, EventFd) {
    let line = EventFd::new(EFD_NONBLOCK).unwrap();
    (I8042::new(line.try_clone().unwrap()), line)
}

fn v1(chip: &I8042) -> I8042V1 {
    let I8042State::V1(state) = chip.save();
    state
}

fn restored(state: I8042V1) -> Result<(I8042, EventFd), StateError> {
    let (mut chip, line) = chip();
    chip.restore(I8042State::V1(state))?;
    Ok((chip, line))
}

/// Two bytes wait, and a parameter of the controller is expected.
fn used() -> I8042 {
    let (mut chip, _line) = chip();
    chip.write(DATA, &[0xff]);
    chip.write(COMMAND, &[0x60]);
    chip
}

#[test]
fn a_restored_controller_is_the_one_that_was_saved() {
    let mut chips = [used(), restored(v1(&used())).unwrap().0];
    assert_eq!(chips[0].save(), chips[1].save());
    assert_ne!(chips[0].save(), chip().0.save());
    for chip in &mut chips {
        let mut read = |offset| {
            let mut out = [0];
            chip.read(offset, &mut out);
            out[0]
        };
        assert_eq!(read(COMMAND) & 0b1001, 0b1001);
        assert_eq!((read(DATA), read(DATA)), (0xfa, 0xaa));
        chip.write(DATA, &[CONFIG_TRANSLATE]);
        assert_eq!(v1(chip).config, CONFIG_TRANSLATE | CONFIG_NO_MOUSE);
    }
}

#[test]
fn each_parameter_still_belongs_to_its_command() {
    for (offset, command) in [
        (COMMAND, 0x60),
        (COMMAND, 0xd1),
        (COMMAND, 0xd2),
        (COMMAND, 0xd3),
        (COMMAND, 0xd4),
        (DATA, 0xed),
        (DATA, 0xf0),
        (DATA, 0xf3),
    ] {
        let (mut saved, _line) = chip();
        saved.write(offset, &[command]);
        let (mut child, _line) = restored(v1(&saved)).unwrap();
        let effect = child.write(DATA, &[0]);
        assert_eq!(effect, saved.write(DATA, &[0]), "{command:#x}");
        assert_eq!(effect == Effect::Reset, command == 0xd1);
        assert_eq!(child.save(), saved.save(), "{command:#x}");
    }
}

#[test]
fn a_byte_that_waits_is_signalled_again_when_the_vcpus_are_about_to_run() {
    let (child, line) = restored(v1(&used())).unwrap();
    assert!(line.read().is_err(), "not before the controllers");
    child.after_restore();
    assert_eq!(line.read().unwrap(), 1);

    let masked = I8042V1 {
        config: v1(&used()).config & !CONFIG_INTERRUPT,
        ..v1(&used())
    };
    let (child, line) = restored(masked).unwrap();
    child.after_restore();
    assert!(line.read().is_err());

    let (child, line) = restored(v1(&chip().0)).unwrap();
    child.after_restore();
    assert!(line.read().is_err(), "nothing waits");
}

#[test]
fn what_the_controller_cannot_be_is_refused() {
    let refused = |damage: fn(&mut I8042V1), text: &str| {
        let mut state = v1(&used());
        damage(&mut state);
        let error = restored(state).err().unwrap().to_string();
        assert!(
            error.contains("keyboard") && error.contains(text),
            "{error}"
        );
    };
    refused(|s| s.output = vec![0; QUEUE + 1], "17 bytes");
    refused(|s| s.config = 0x45, "0x45");
    refused(|s| s.expects = ExpectsV1::Parameter(0xed), "0xed");
    refused(|s| s.expects = ExpectsV1::KeyboardParameter(0x60), "0x60");
}

#[test]
fn damaged_bytes_never_harm() {
    let bytes = state::encode("the controller", &used().save()).unwrap();
    for len in 0..bytes.len() {
        state::decode::<I8042State>("the controller", &bytes[..len]).expect_err("cut");
    }
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(I8042State::V1(state)) = state::decode("the controller", &bytes)
            && let Ok((mut chip, _line)) = restored(state)
        {
            for offset in 0..5 {
                chip.read(offset, &mut [0]);
                chip.write(offset, &[0x20]);
            }
        }
    }
}
