use super::*;
use crate::virtio::TURN_REQUESTS;
use crate::virtio::mock_driver::{Descriptor, MockDriver, env, guest_memory};

fn rig() -> (Rng, MockDriver) {
    let memory = guest_memory();
    let driver = MockDriver::new(&memory, 0, 128);
    let mut rng = Rng::new().unwrap();
    rng.start(env(&memory, &[&driver], 0)).unwrap();
    (rng, driver)
}

#[test]
fn every_buffer_of_a_request_is_filled() {
    let (mut rng, mut driver) = rig();
    let sent = driver.send(&[], &[1, 64, 5000, 0, 3]);
    rng.queue_notified(0).unwrap();
    assert_eq!(driver.used()[0].len, 5068);
    let got = driver.received(&sent);
    // Zeroes would mean that a part was left out.
    for (at, part) in got.chunks(32).enumerate() {
        assert!(
            part.iter().any(|&byte| byte != 0) || part.len() < 8,
            "part {at}"
        );
    }
}

#[test]
fn a_huge_request_gets_a_bounded_answer() {
    let (mut rng, mut driver) = rig();
    driver.offer_chain(&[Descriptor::writable(1 << 20, 15 << 20); 64]);
    rng.queue_notified(0).unwrap();
    assert_eq!(driver.used()[0].len as usize, MAX_REQUEST);
}

#[test]
fn many_requests_are_served_in_turns() {
    let (mut rng, mut driver) = rig();
    for _ in 0..TURN_REQUESTS + 1 {
        driver.send(&[], &[8]);
    }
    rng.queue_notified(0).unwrap();
    assert_eq!(driver.used().len(), TURN_REQUESTS);
    rng.backend_ready().unwrap();
    assert_eq!(driver.used().len(), 1);
}

#[test]
fn a_request_without_room_is_returned_empty() {
    let (mut rng, mut driver) = rig();
    driver.send(&[b"not for writing"], &[]);
    rng.queue_notified(0).unwrap();
    assert_eq!(driver.used()[0].len, 0);
}

#[test]
fn a_stopped_device_serves_nothing() {
    let (mut rng, mut driver) = rig();
    rng.stop();
    driver.send(&[], &[8]);
    rng.queue_notified(0).unwrap();
    rng.backend_ready().unwrap();
    assert!(driver.used().is_empty());
}

#[test]
fn a_restored_device_serves_what_waits() {
    let memory = guest_memory();
    let (saved, mut driver) = (Rng::new().unwrap(), MockDriver::new(&memory, 0, 128));
    let bytes = saved.save().unwrap();
    driver.send(&[], &[8]);
    let mut rng = Rng::new().unwrap();
    for damaged in [&[][..], &[1], &[0, 0]] {
        rng.restore(damaged).unwrap_err();
    }
    rng.restore(&bytes).unwrap();
    rng.start(env(&memory, &[&driver], 0)).unwrap();
    rng.queue_notified(0).unwrap();
    assert_eq!(driver.used()[0].len, 8);
}
