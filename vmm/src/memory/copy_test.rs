use std::os::unix::fs::FileExt as _;

use vm_memory::{Bytes as _, GuestAddress};

use super::*;
use crate::memory::layers::{blocks, spans};
use crate::memory::{GuestMemory, allocate};

const PAGE: u64 = BLOCK_SIZE;

fn write(memory: &GuestMemory, page: u64, byte: u8) {
    memory.write_obj(byte, GuestAddress(page * PAGE)).unwrap();
}

fn members(extents: &Extents) -> Vec<u64> {
    extents.iter().flat_map(|extent| extent.range()).collect()
}

fn byte(file: &File, page: u64) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, page * PAGE).unwrap();
    byte[0]
}

#[test]
fn a_copy_has_what_was_there_at_the_fork_and_nothing_later() {
    let memory = allocate(32, 48).unwrap();
    write(&memory, 3, 1);
    write(&memory, 4, 0);
    write(&memory, 1000, 2);
    let file = tempfile::tempfile().unwrap();
    let scratch = Scratch::new(blocks(&memory)).unwrap();
    let mut copy = Copy::start(&spans(&memory), &file, Source::Anonymous, scratch).unwrap();
    write(&memory, 3, 9);
    write(&memory, 2000, 9);
    copy.go().unwrap();
    let copied = copy.finish().unwrap();
    assert_eq!(members(&copied.held), [3, 4, 1000]);
    assert_eq!(members(&copied.zero), [4]);
    assert_eq!((byte(&file, 3), byte(&file, 1000)), (1, 2));
    assert_eq!(file.metadata().unwrap().len(), 1001 * PAGE);
}

#[test]
fn small_gaps_are_copied_too() {
    let memory = allocate(32, 48).unwrap();
    write(&memory, 10, 1);
    write(&memory, 19, 1);
    write(&memory, 29, 1);
    let file = tempfile::tempfile().unwrap();
    let scratch = Scratch::new(blocks(&memory)).unwrap();
    let mut copy = Copy::start(&spans(&memory), &file, Source::Anonymous, scratch).unwrap();
    copy.go().unwrap();
    let copied = copy.finish().unwrap();
    let expected: Vec<u64> = (10..=19).chain([29]).collect();
    assert_eq!(members(&copied.held), expected);
    assert_eq!(copied.zero.blocks(), 8);
}

#[test]
fn a_window_with_many_pieces_is_copied_whole() {
    let memory = allocate(32, 48).unwrap();
    let held = |pages: &[u64], cuts: &[u64]| {
        let scratch = Scratch::new(blocks(&memory)).unwrap();
        pages.iter().for_each(|&page| scratch.mark(page, 1));
        cuts.iter().for_each(|&page| scratch.cut(page));
        let file = tempfile::tempfile().unwrap();
        let mut copy = Copy::start(&spans(&memory), &file, Source::Marked, scratch).unwrap();
        copy.go().unwrap();
        members(&copy.finish().unwrap().held)
    };
    let whole: Vec<u64> = (64..128).collect();
    assert_eq!(held(&[70, 90], &[]), [70, 90]);
    assert_eq!(held(&[70, 90, 110], &[]), whole);
    assert_eq!(held(&[70, 90], &[64]), whole);
    assert_eq!(held(&[], &[64, 66, 68, 70, 72, 74]), [0u64; 0]);
}

#[test]
fn only_marked_pages_are_held_if_that_is_asked_for() {
    let memory = allocate(32, 48).unwrap();
    (0..100).for_each(|page| write(&memory, page, 1));
    let file = tempfile::tempfile().unwrap();
    let scratch = Scratch::new(blocks(&memory)).unwrap();
    scratch.mark(63, 2);
    let mut copy = Copy::start(&spans(&memory), &file, Source::Marked, scratch).unwrap();
    copy.mark(90, 1);
    copy.mark(8191, 100);
    copy.go().unwrap();
    let copied = copy.finish().unwrap();
    assert_eq!(members(&copied.held), [63, 64, 90, 8191]);
    assert_eq!(members(&copied.zero), [8191]);
}

#[test]
fn a_full_disk_and_a_killed_helper_are_told_apart() {
    let memory = allocate(32, 48).unwrap();
    write(&memory, 3, 1);
    let start = |file: &File| {
        let scratch = Scratch::new(blocks(&memory)).unwrap();
        Copy::start(&spans(&memory), file, Source::Anonymous, scratch).unwrap()
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut copy = start(&full);
    copy.go().unwrap();
    let error = copy.finish().unwrap_err();
    assert!(
        matches!(&error, CopyError::Helper { source, .. } if source.raw_os_error() == Some(libc::ENOSPC)),
        "{error}"
    );

    let file = tempfile::tempfile().unwrap();
    let copy = start(&file);
    copy.killer().unwrap().kill();
    assert!(matches!(
        copy.finish(),
        Err(CopyError::Killed(libc::SIGKILL))
    ));

    let never_let_go = start(&file);
    assert!(matches!(
        never_let_go.finish(),
        Err(CopyError::Helper { .. })
    ));
}
