use std::os::unix::fs::FileExt as _;

use super::*;

fn file() -> File {
    vmm_sys_util::tempfile::TempFile::new().unwrap().into_file()
}

fn slices(data: &mut [u8], each: usize) -> Vec<VolatileSlice<'_>> {
    data.chunks_mut(each).map(VolatileSlice::from).collect()
}

#[test]
fn more_ranges_than_one_call_takes_are_transferred_whole() {
    let mut written: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8).collect();
    let file = file();
    write_vectored_at(&file, &slices(&mut written, 3), 5).unwrap();
    let mut read = vec![0; 9000];
    read_vectored_at(&file, &slices(&mut read, 7), 5).unwrap();
    assert_eq!(read, written);
    assert_eq!(file.metadata().unwrap().len(), 9005);
}

#[test]
fn partial_transfers_go_on_where_they_ended() {
    let mut data = [0u8; 10];
    let base = data.as_ptr() as usize;
    let mut calls = Vec::new();
    transfer(&slices(&mut data, 4), 100, |ranges, offset| {
        calls.push((offset, ranges[0].iov_base as usize - base, ranges.len()));
        ranges
            .iter()
            .map(|range| range.iov_len)
            .sum::<usize>()
            .min(3) as isize
    })
    .unwrap();
    let expected = [(100, 0, 3), (103, 3, 3), (106, 6, 2), (109, 9, 1)];
    assert_eq!(calls, expected);
}

#[test]
fn reading_past_the_end_is_an_error() {
    let file = file();
    file.write_at(&[1; 10], 0).unwrap();
    let mut data = [0; 11];
    let error = read_vectored_at(&file, &slices(&mut data, 11), 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(read_vectored_at(&file, &slices(&mut data, 11), u64::MAX).is_err());
    read_vectored_at(&file, &[], 0).unwrap();
}

#[test]
fn random_bytes_differ() {
    let (mut a, mut b) = ([0; 32], [0; 32]);
    random(&mut a).unwrap();
    random(&mut b).unwrap();
    assert_ne!(a, b);
    random(&mut []).unwrap();
}
