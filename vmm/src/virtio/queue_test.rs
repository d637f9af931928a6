use super::super::mock_driver::{Descriptor, LOW_END, MockDriver, Used, guest_memory};
use super::*;

fn driver() -> MockDriver {
    MockDriver::new(&guest_memory(), 0, 8)
}

#[test]
fn chains_come_in_order_and_go_back() {
    let mut driver = driver();
    let mut queue = driver.virtqueue(false);
    assert!(queue.pop().unwrap().is_none());
    // More than one turn of the ring.
    for round in 0..20 {
        driver.forget_data();
        let first = driver.send(&[b"a"], &[]);
        let second = driver.send(&[b"b"], &[4]);
        let popped = queue.pop().unwrap().unwrap();
        assert_eq!(popped.head, first.head);
        queue.undo_pop();
        assert_eq!(queue.pop().unwrap().unwrap().head, first.head);
        assert_eq!(queue.pop().unwrap().unwrap().head, second.head);
        assert!(queue.pop().unwrap().is_none(), "round {round}");
        queue.push_used(second.head, 4).unwrap();
        queue.push_used(first.head, 0).unwrap();
        let back = |head: u16, len| Used {
            head: head.into(),
            len,
        };
        assert_eq!(driver.used(), [back(second.head, 4), back(first.head, 0)]);
    }
}

#[test]
fn an_available_index_that_ran_ahead_is_a_fault() {
    for ahead in [9, 0x7fff, u16::MAX] {
        let mut driver = driver();
        let mut queue = driver.virtqueue(false);
        driver.set_available_index(ahead);
        let error = queue.pop().unwrap_err().to_string();
        assert!(error.starts_with("queue 0: "), "{error}");
    }
}

#[test]
fn a_head_past_the_table_is_a_fault() {
    let mut driver = driver();
    let mut queue = driver.virtqueue(false);
    driver.offer(8);
    assert!(queue.pop().is_err());
    assert!(queue.push_used(8, 0).is_err());
}

#[test]
fn interrupts_follow_the_flag_without_event_index() {
    let mut driver = driver();
    let mut queue = driver.virtqueue(false);
    assert!(queue.needs_interrupt().unwrap());
    driver.set_available_flags(1);
    assert!(!queue.needs_interrupt().unwrap());
    queue.disable_notification();
    assert_eq!(driver.used_flags(), 1);
    assert!(!queue.enable_notification().unwrap());
    assert_eq!(driver.used_flags(), 0);
}

#[test]
fn interrupts_follow_the_event_index() {
    let mut driver = driver();
    let mut queue = driver.virtqueue(true);
    driver.set_available_flags(1); // Must be ignored (virtio 1.2 §2.7.7.2).
    driver.set_used_event(1);
    for (n, wanted) in [(0, false), (1, true), (2, false)] {
        let sent = driver.send(&[b"x"], &[]);
        assert!(queue.pop().unwrap().is_some());
        queue.push_used(sent.head, 0).unwrap();
        assert_eq!(queue.needs_interrupt().unwrap(), wanted, "chain {n}");
    }
    driver.send(&[b"x"], &[]);
    assert!(queue.enable_notification().unwrap());
    assert_eq!(driver.available_event(), 3);
}

#[test]
fn a_queue_that_is_not_ready_never_yields() {
    let mut driver = driver();
    driver.send(&[b"x"], &[]);
    let setup = QueueSetup {
        ready: false,
        // Not believed, and not looked at either.
        used: u64::MAX,
        ..driver.setup()
    };
    let mut queue = Virtqueue::new(0, &setup, false, Arc::new(guest_memory())).unwrap();
    assert!(!queue.ready());
    assert!(queue.pop().unwrap().is_none());
    assert!(!queue.needs_interrupt().unwrap());
    assert!(!queue.enable_notification().unwrap());
    queue.disable_notification();
    assert!(queue.push_used(0, 0).is_err());
}

#[test]
fn bad_set_ups_are_refused() {
    let good = driver().setup();
    type Spoil = fn(&mut QueueSetup);
    let bad: [(&str, Spoil); 11] = [
        ("size 0", |s| s.size = 0),
        ("size no power of two", |s| s.size = 3),
        ("size too large", |s| s.size = 16),
        ("size past 16 bits", |s| s.size = 0x1_0008),
        ("descriptors misaligned", |s| s.descriptors += 8),
        ("available misaligned", |s| s.available += 1),
        ("used misaligned", |s| s.used += 2),
        ("descriptors in the hole", |s| s.descriptors = LOW_END),
        ("available at the end", |s| s.available = LOW_END - 4),
        ("used wraps", |s| s.used = u64::MAX - 3),
        ("used over the hole", |s| s.used = LOW_END - 8),
    ];
    for (name, spoil) in bad {
        let mut setup = good.clone();
        spoil(&mut setup);
        let queue = Virtqueue::new(1, &setup, true, Arc::new(guest_memory()));
        let error = queue.err().unwrap_or_else(|| panic!("{name} was taken"));
        assert!(error.to_string().starts_with("queue 1: "), "{error}");
    }
}

#[test]
fn overlapping_rings_harm_nobody_but_the_driver() {
    let mut driver = driver();
    let good = driver.setup();
    let setup = QueueSetup {
        available: good.descriptors,
        used: good.descriptors,
        ..good
    };
    let mut queue = Virtqueue::new(0, &setup, true, Arc::new(guest_memory())).unwrap();
    driver.set_descriptor(0, Descriptor::readable(0x10_0001_0000, 0x10));
    for _ in 0..100 {
        let _ = queue.pop();
        let _ = queue.push_used(0, u32::MAX);
        let _ = queue.needs_interrupt();
        let _ = queue.enable_notification();
    }
}
