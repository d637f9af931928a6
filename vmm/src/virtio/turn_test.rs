use super::super::mock_driver::{Descriptor, MockDriver, env, guest_memory};
use super::*;

fn asked(turn: &NextTurn) -> bool {
    turn.0.read().is_ok()
}

#[test]
fn a_turn_ends_after_so_many_requests_and_asks_for_another() {
    let memory = guest_memory();
    let mut driver = MockDriver::new(&memory, 0, 256);
    let mut env = env(&memory, &[&driver], 0);
    let turn = NextTurn::new().unwrap();
    for _ in 0..TURN_REQUESTS + 1 {
        driver.send(&[], &[4]);
    }
    turn.serve(&mut env.queues[0], &env.interrupt, |_| 4)
        .unwrap();
    assert_eq!(driver.used().len(), TURN_REQUESTS);
    assert_eq!(env.interrupt.status(), 1);
    assert_eq!(
        driver.used_flags(),
        1,
        "no notification is needed meanwhile"
    );
    assert!(asked(&turn));

    turn.serve(&mut env.queues[0], &env.interrupt, |_| 4)
        .unwrap();
    assert_eq!(driver.used().len(), 1);
    assert_eq!(driver.used_flags(), 0);
    assert!(!asked(&turn));
}

#[test]
fn a_turn_ends_after_so_many_bytes() {
    let memory = guest_memory();
    let mut driver = MockDriver::new(&memory, 0, 16);
    let mut env = env(&memory, &[&driver], 0);
    for _ in 0..3 {
        driver.offer_chain(&[Descriptor::writable(0, TURN_BYTES as u32 - 1)]);
    }
    let turn = NextTurn::new().unwrap();
    turn.serve(&mut env.queues[0], &env.interrupt, |_| 0)
        .unwrap();
    assert_eq!(driver.used().len(), 2);
    assert!(asked(&turn));
}

#[test]
fn a_turn_without_requests_is_silent() {
    let memory = guest_memory();
    let driver = MockDriver::new(&memory, 0, 16);
    let mut env = env(&memory, &[&driver], 0);
    let turn = NextTurn::new().unwrap();
    turn.serve(&mut env.queues[0], &env.interrupt, |_| 0)
        .unwrap();
    assert_eq!(env.interrupt.status(), 0);
    assert!(!asked(&turn));
}
