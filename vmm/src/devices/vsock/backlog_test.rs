use super::super::fake_stream::FakeStream;
use super::*;

#[test]
fn bytes_come_out_in_order_however_they_went_in() {
    let stream = FakeStream::default();
    let mut backlog = Backlog::default();
    let mut expected = Vec::<u8>::new();
    let mut next = 0_u8;
    for round in 0..200 {
        // Longer than a chunk now and then, in two pieces, the front skipped.
        let mut data: Vec<u8> = (0..round * 53)
            .map(|_| {
                next = next.wrapping_mul(31).wrapping_add(7);
                next
            })
            .collect();
        let skip = (round * 17).min(data.len());
        expected.extend(&data[skip..]);
        let (front, back) = data.split_at_mut(round * 20);
        backlog.push(
            &[VolatileSlice::from(front), VolatileSlice::from(back)],
            skip,
        );
        // Take some out, so that the ring wraps.
        stream.0.borrow_mut().room = round * 29;
        backlog.flush(&stream).unwrap();
    }
    assert_eq!(backlog.len(), expected.len() - stream.0.borrow().sent.len());
    stream.0.borrow_mut().room = usize::MAX;
    backlog.flush(&stream).unwrap();
    assert!(stream.0.borrow().sent == expected);
}

#[test]
fn an_empty_backlog_keeps_no_memory() {
    let mut backlog = Backlog::default();
    backlog.push(&[VolatileSlice::from(&mut [1; 100_000][..])], 0);
    backlog.flush(&FakeStream::with_room(100_000)).unwrap();
    assert!(backlog.is_empty());
    assert_eq!(backlog.0.capacity(), 0);
}

#[test]
fn a_broken_stream_is_an_error() {
    let stream = FakeStream::default();
    stream.0.borrow_mut().broken = true;
    let mut backlog = Backlog::default();
    backlog.push(&[VolatileSlice::from(&mut [1; 10][..])], 0);
    assert!(backlog.flush(&stream).is_err());
}
