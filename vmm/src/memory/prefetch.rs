//! What machines of one snapshot touch first, recorded once and fetched ahead
//! the next time.
//!
//! A page of a layer that is not in the host's page cache costs a restored
//! machine a wait for the disk. Most machines of one snapshot need the same pages
//! first, so these are read while the machine runs already, in pieces that are
//! small enough not to be in its way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use coppice_snapshot::{BLOCK_SIZE, Extents};

use super::GuestMemory;
use super::layers;
use crate::sys::map;
use crate::sys::pagemap::{Pagemap, Wanted};

/// Blocks that are fetched at once, 64 KiB: larger pieces come later than the
/// guest needs their first page.
const PIECE: u64 = (64 << 10) / BLOCK_SIZE;

/// The blocks of `memory` that have been touched since it was mapped, in whole
/// pieces of 64 KiB.
///
/// # Errors
/// The kernel does not tell: there is no /proc, for instance.
pub fn touched(memory: &GuestMemory) -> io::Result<Extents> {
    let blocks = layers::blocks(memory);
    let mut bitmap = vec![0u64; blocks.div_ceil(64) as usize];
    let pagemap = Pagemap::open()?;
    for span in layers::spans(memory) {
        let first = span.blocks.start;
        let mut mark = |offset: u64, len: u64| {
            let start = (first + offset / BLOCK_SIZE) / PIECE;
            let end = (first + (offset + len) / BLOCK_SIZE).div_ceil(PIECE);
            for block in start * PIECE..end * PIECE {
                if let Some(word) = bitmap.get_mut((block / 64) as usize) {
                    *word |= 1 << (block % 64);
                }
            }
        };
        pagemap.scan(span.address, span.len(), Wanted::Present, &mut mark)?;
    }
    Ok(Extents::from_bitmap(&bitmap, blocks))
}

/// A thread that fetches pages. Dropping it ends it.
pub struct Prefetch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Fetches `blocks` of `memory`.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub fn start(memory: GuestMemory, blocks: Extents) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = Builder::new()
            .name("prefetch".to_owned())
            .spawn(move || fetch(&memory, &blocks, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn fetch(memory: &GuestMemory, blocks: &Extents, stop: &AtomicBool) {
    for span in layers::spans(memory) {
        for part in blocks.within(span.blocks.clone()) {
            for start in part.clone().step_by(PIECE as usize) {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let end = (start + PIECE).min(part.end);
                let at = span.address + ((start - span.blocks.start) * BLOCK_SIZE) as usize;
                let len = ((end - start) * BLOCK_SIZE) as usize;
                // SAFETY: the range lies within guest memory, which `memory`
                // keeps mapped.
                if let Err(error) = unsafe { map::populate(at, len) } {
                    log::debug!("pages are fetched when they are needed, not before: {error}");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocate;
    use vm_memory::{Bytes as _, GuestAddress};

    fn members(extents: &Extents) -> Vec<u64> {
        extents.iter().flat_map(|extent| extent.range()).collect()
    }

    #[test]
    fn what_was_touched_is_fetched_in_another_memory() {
        let one = allocate(32, 48).unwrap();
        for block in [3, 100] {
            let at = GuestAddress(block * BLOCK_SIZE);
            one.write_obj(1u8, at).unwrap();
        }
        let set = touched(&one).unwrap();
        let pieces: Vec<u64> = (0..16).chain(96..112).collect();
        assert_eq!(members(&set), pieces);

        let other = allocate(32, 48).unwrap();
        assert_eq!(touched(&other).unwrap().blocks(), 0);
        // Zero pages of anonymous memory do not count as touched, so that a file
        // is needed to see something.
        let file = tempfile::tempfile().unwrap();
        file.set_len(32 << 20).unwrap();
        let span = &layers::spans(&other)[0];
        // SAFETY: nobody else knows of this memory.
        unsafe {
            use std::os::fd::AsFd as _;
            map::overlay(span.address as *mut _, file.as_fd(), 0, span.len()).unwrap();
        }
        let mut prefetch = Prefetch::start(other.clone(), set.clone()).unwrap();
        prefetch.thread.take().unwrap().join().unwrap();
        assert!(touched(&other).unwrap().covers(&set));
    }
}
