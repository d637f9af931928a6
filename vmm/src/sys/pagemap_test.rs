use super::*;
use crate::sys::map::Mapping;
use std::io::Write as _;
use std::os::fd::AsFd as _;

const PAGE: usize = PAGE_SIZE as usize;

/// Pages of `mapping` that are wanted.
fn pages(map: &Pagemap, mapping: &Mapping, wanted: Wanted<'_>) -> Vec<u64> {
    let mut pages = Vec::new();
    map.scan(
        mapping.address(),
        mapping.len(),
        wanted,
        &mut |offset, len| {
            pages.extend(offset / PAGE_SIZE..(offset + len) / PAGE_SIZE);
        },
    )
    .unwrap();
    pages
}

fn write(mapping: &Mapping, page: usize) {
    // SAFETY: the mapping is writable, private to the test and long enough.
    unsafe {
        (mapping.address() as *mut u8)
            .add(page * PAGE)
            .write_volatile(7)
    };
}

fn read(mapping: &Mapping, page: usize) -> u8 {
    // SAFETY: the mapping is readable and long enough.
    unsafe {
        (mapping.address() as *const u8)
            .add(page * PAGE)
            .read_volatile()
    }
}

/// 1,000 pages, of which 100 to 199 are those of a file.
fn sample() -> Mapping {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![1; 1000 * PAGE]).unwrap();
    let mapping = Mapping::anonymous(1000 * PAGE).unwrap();
    mapping
        .overlay(file.as_fd(), 100 * PAGE as u64, 100 * PAGE, 100 * PAGE)
        .unwrap();
    mapping
}

#[test]
fn both_ways_find_the_pages_that_were_written_and_no_others() {
    let mapping = sample();
    for page in [3, 4, 5, 150, 999] {
        write(&mapping, page);
    }
    for page in [0, 101, 102, 500] {
        read(&mapping, page);
    }
    let scan = pages(&Pagemap::open().unwrap(), &mapping, Wanted::Anonymous);
    assert_eq!(scan, [3, 4, 5, 150, 999]);
    // The zero page may count as anonymous there; it is as good as unwritten.
    let map = Pagemap::open().unwrap().entries_only();
    let entries = pages(&map, &mapping, Wanted::Anonymous);
    assert!(
        scan.iter().all(|page| entries.contains(page)),
        "{entries:?}"
    );
    assert!(!entries.contains(&101), "{entries:?}");
}

#[test]
fn marks_tell_what_was_written_since() {
    let mapping = sample();
    let Ok(marks) = WriteMarks::new() else {
        panic!("this kernel has no asynchronous write protection (Linux 6.7)");
    };
    marks.add(mapping.address(), mapping.len()).unwrap();
    let map = Pagemap::open().unwrap();
    for page in [3, 4, 150] {
        write(&mapping, page);
    }
    assert_eq!(
        pages(&map, &mapping, Wanted::WrittenAndMark(&marks)),
        [3, 4, 150]
    );
    assert_eq!(pages(&map, &mapping, Wanted::Written(&marks)), [0u64; 0]);
    for page in [4, 151, 600] {
        write(&mapping, page);
    }
    read(&mapping, 3);
    assert_eq!(
        pages(&map, &mapping, Wanted::Written(&marks)),
        [4, 151, 600]
    );
    assert_eq!(
        pages(&map, &mapping, Wanted::Anonymous),
        [3, 4, 150, 151, 600]
    );
}
