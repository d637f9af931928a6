use super::*;

#[test]
fn nothing_may_be_sent_before_the_guest_has_spoken() {
    assert_eq!(SendCredit::new().available(), 0);
}

#[test]
fn credit_is_the_buffer_less_what_is_under_way() {
    let mut credit = SendCredit::new();
    credit.update(1000, 0).unwrap();
    credit.spend(600);
    assert_eq!(credit.available(), 400);
    credit.update(1000, 500).unwrap();
    assert_eq!(credit.available(), 900);
}

#[test]
fn a_buffer_made_smaller_than_what_is_under_way_leaves_no_credit() {
    let mut credit = SendCredit::new();
    credit.update(1000, 0).unwrap();
    credit.spend(800);
    credit.update(500, 100).unwrap();
    assert_eq!(credit.available(), 0);
    credit.update(500, 400).unwrap();
    assert_eq!(credit.available(), 100);
}

#[test]
fn counters_wrap() {
    let mut credit = SendCredit::new();
    let mut count = 0_u32;
    // Five times round 2^32 in steps that do not divide it.
    for _ in 0..20 {
        credit.update(u32::MAX, count).unwrap();
        let step = 0x4000_0001;
        credit.spend(step);
        count = count.wrapping_add(step);
    }
    credit.update(1000, count).unwrap();
    assert_eq!(credit.available(), 1000);

    let mut receive = ReceiveCredit::new();
    for _ in 0..2 * (u32::MAX / BUF_ALLOC) {
        receive.accept(BUF_ALLOC as usize).unwrap();
        assert_eq!(receive.accept(1), Err(Overrun));
        receive.forward(BUF_ALLOC as usize);
        assert!(receive.should_announce());
        receive.announce();
    }
}

#[test]
fn a_guest_cannot_have_taken_more_than_it_was_sent() {
    let mut credit = SendCredit::new();
    credit.update(1000, 0).unwrap();
    credit.spend(10);
    assert_eq!(credit.update(1000, 11), Err(FalseClaim));
    assert_eq!(credit.update(1000, 10), Ok(()));
}

#[test]
fn an_older_count_is_ignored() {
    let mut credit = SendCredit::new();
    credit.update(1000, 0).unwrap();
    credit.spend(500);
    credit.update(1000, 400).unwrap();
    credit.update(1000, 300).unwrap();
    assert_eq!(credit.available(), 900);
}

#[test]
fn the_guest_may_fill_the_buffer_and_not_a_byte_more() {
    let mut credit = ReceiveCredit::new();
    credit.accept(BUF_ALLOC as usize - 1).unwrap();
    assert_eq!(credit.accept(2), Err(Overrun));
    credit.accept(1).unwrap();
    assert_eq!(credit.accept(1), Err(Overrun));
    assert_eq!(credit.accept(usize::MAX), Err(Overrun));
    credit.forward(7);
    assert_eq!(credit.accept(8), Err(Overrun));
    credit.accept(7).unwrap();
}

#[test]
fn room_is_announced_when_half_of_it_was_freed() {
    let mut credit = ReceiveCredit::new();
    let half = BUF_ALLOC as usize / 2;
    credit.accept(BUF_ALLOC as usize).unwrap();
    credit.forward(half - 1);
    assert!(!credit.should_announce());
    credit.forward(1);
    assert!(credit.should_announce());
    assert_eq!(credit.announce(), BUF_ALLOC / 2);
    assert!(!credit.should_announce());
}
