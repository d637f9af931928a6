//! Copies the private top of a machine's memory into a file while the machine
//! runs on.
//!
//! fork(2) gives a child a frozen view of the memory for the price of its page
//! tables. The child, the *helper*, finds the pages that are the machine's own
//! and writes those that are not all zeroes at their places in the file. What
//! it held and what was zero it leaves in bitmaps in shared memory, from which
//! the parent makes the layer's index.

use std::fs::File;
use std::io::{self, PipeWriter, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use coppice_snapshot::{BLOCK_SIZE, Extents};

use super::layers::Span;
use crate::sys::fork::{Child, End, Killer};
use crate::sys::map::Mapping;
use crate::sys::pagemap::{Pagemap, Wanted};

/// Gaps of up to so many pages between held ones are held as well: the copy
/// costs less than a mapping at each restore.
const BRIDGE: u64 = 8;
/// A window of memory, in pages, that would take more mappings than this at
/// each restore is held as a whole, so that long chains restore like short ones.
const WINDOW: u64 = 64;
const WINDOW_PIECES: u64 = 4;
/// Pages that may be held for that reason alone, unless more have changed.
const ABSORB: u64 = (16 << 20) / BLOCK_SIZE;

/// Bytes in the shared memory before the bitmaps.
const HEAD: usize = 64;

/// Which pages the helper holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Those that are anonymous in its own view, and those that
    /// [`Scratch::mark`] has marked before the fork.
    Anonymous,
    /// Those that have been marked when [`Copy::go`] is called.
    Marked,
}

/// Why memory could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Before the helper ran.
    #[error("the host could not {what} for the copy of the machine's memory ({source})")]
    Host {
        /// What was attempted.
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The helper failed.
    #[error("the machine's memory could not be {what} ({source})")]
    Helper {
        /// "written to the layer" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The helper was killed.
    #[error(
        "the process that copies the machine's memory was killed by signal {0}: see whether the \
         host ran out of memory, and try again"
    )]
    Killed(i32),
}

/// Memory that a helper shares with its parent: a report, two bitmaps with a bit
/// for each block, and a byte for each window.
pub struct Scratch {
    mapping: Mapping,
    blocks: u64,
}

impl Scratch {
    /// For a memory of `blocks` blocks; no bit is set.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn new(blocks: u64) -> Result<Self, CopyError> {
        let words = blocks.div_ceil(64) as usize;
        let windows = blocks.div_ceil(WINDOW) as usize;
        let mapping =
            Mapping::shared(HEAD + 2 * words * 8 + windows).map_err(host("get memory"))?;
        Ok(Self { mapping, blocks })
    }

    /// Marks blocks to be held.
    pub fn mark(&self, start: u64, len: u64) {
        set(
            self.bitmap(0),
            start,
            len.min(self.blocks.saturating_sub(start)),
        );
    }

    /// Block `start` begins a piece of what lies below the copy.
    pub fn cut(&self, start: u64) {
        if let Some(pieces) = self.cuts().get((start / WINDOW) as usize) {
            // Many are as good as more.
            let more = pieces.load(Ordering::Relaxed).saturating_add(1);
            pieces.store(more, Ordering::Relaxed);
        }
    }

    /// For each window, how many pieces of what lies below begin in it.
    fn cuts(&self) -> &[AtomicU8] {
        let words = self.blocks.div_ceil(64) as usize;
        let start = (self.mapping.address() + HEAD + 2 * words * 8) as *const AtomicU8;
        // SAFETY: as for the bitmaps.
        unsafe { std::slice::from_raw_parts(start, self.blocks.div_ceil(WINDOW) as usize) }
    }

    /// Bitmap 0 has the held blocks, bitmap 1 those of them that are zero.
    fn bitmap(&self, which: usize) -> &[AtomicU64] {
        let words = self.blocks.div_ceil(64) as usize;
        let start = (self.mapping.address() + HEAD + which * words * 8) as *const AtomicU64;
        // SAFETY: the mapping has room for both bitmaps, is aligned to pages,
        // lives as long as `self`, and is only ever accessed atomically.
        unsafe { std::slice::from_raw_parts(start, words) }
    }

    /// Two words: the step that failed, counted from 1, and its errno.
    fn report(&self) -> &[AtomicU32] {
        let start = self.mapping.address() as *const AtomicU32;
        // SAFETY: as for the bitmaps; the head is 64 bytes.
        unsafe { std::slice::from_raw_parts(start, 2) }
    }

    fn extents(&self, which: usize) -> Extents {
        let words: Vec<u64> = self
            .bitmap(which)
            .iter()
            .map(|word| word.load(Ordering::Acquire))
            .collect();
        Extents::from_bitmap(&words, self.blocks)
    }
}

/// A helper at work.
pub struct Copy {
    child: Child,
    scratch: Scratch,
    go: PipeWriter,
}

/// What a helper wrote.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    /// Blocks of the whole memory.
    pub blocks: u64,
    /// The blocks that the layer holds.
    pub held: Extents,
    /// Those of them that are all zeroes, and holes in the file.
    pub zero: Extents,
}

impl Copy {
    /// Forks a helper that writes the memory at `spans` into `file`, block `n` at
    /// offset `n × 4096`. This takes as long as fork(2) does; the view is frozen
    /// when it returns.
    ///
    /// # Errors
    /// The host refuses a pipe or a process.
    pub fn start(
        spans: &[Span],
        file: &File,
        source: Source,
        scratch: Scratch,
    ) -> Result<Self, CopyError> {
        let (wait, go) = io::pipe().map_err(host("make a pipe"))?;
        let (file, wait_fd) = (file.as_raw_fd(), wait.as_raw_fd());
        // SAFETY: `helper` and what it calls make system calls that are
        // async-signal-safe and otherwise only compute on memory that they are
        // given. The child's copy of `go` is closed, so the end of the parent
        // ends its wait.
        let child = unsafe {
            Child::spawn([file, wait_fd], || {
                helper(spans, file, wait_fd, source, &scratch)
            })
        };
        let child = child.map_err(host("fork a process"))?;
        Ok(Self { child, scratch, go })
    }

    /// What ends the helper early.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn killer(&self) -> Result<Killer, CopyError> {
        self.child.killer().map_err(host("watch the helper"))
    }

    /// Marks blocks to be held, before [`Copy::go`].
    pub fn mark(&self, start: u64, len: u64) {
        self.scratch.mark(start, len);
    }

    /// Lets the helper begin to write.
    ///
    /// # Errors
    /// The helper is gone.
    pub fn go(&mut self) -> Result<(), CopyError> {
        self.go.write_all(&[1]).map_err(host("start the helper"))
    }

    /// Waits for the helper, for as long as it takes to write.
    ///
    /// # Errors
    /// It could not write everything.
    pub fn finish(self) -> Result<Copied, CopyError> {
        // One that was never let go must not be waited for for ever.
        drop(self.go);
        match self.child.wait().map_err(host("wait for the helper"))? {
            End::Exit(0) => Ok(Copied {
                blocks: self.scratch.blocks,
                held: self.scratch.extents(0),
                zero: self.scratch.extents(1),
            }),
            End::Signal(signal) => Err(CopyError::Killed(signal)),
            End::Exit(_) => {
                let [step, errno] = self.scratch.report() else {
                    return Err(CopyError::Killed(0));
                };
                let what = match step.load(Ordering::Acquire) {
                    STEP_WAIT => "copied, since the machine's process ended",
                    _ => "written to the layer",
                };
                let errno = errno.load(Ordering::Acquire) as i32;
                Err(CopyError::Helper {
                    what,
                    source: io::Error::from_raw_os_error(errno),
                })
            }
        }
    }
}

fn host(what: &'static str) -> impl Fn(io::Error) -> CopyError {
    move |source| CopyError::Host { what, source }
}

const STEP_WAIT: u32 = 1;
const STEP_WRITE: u32 = 2;

// Everything from here on runs in the helper and must stay async-signal-safe:
// no allocation, no locks, no panics.

/// The helper's life. Returns its exit code.
fn helper(spans: &[Span], file: RawFd, wait: RawFd, source: Source, scratch: &Scratch) -> i32 {
    let failed = |step: u32, errno: i32| {
        if let [at, number] = scratch.report() {
            number.store(errno as u32, Ordering::Release);
            at.store(step, Ordering::Release);
        }
        1
    };
    if let Err(errno) = wait_for_go(wait) {
        return failed(STEP_WAIT, errno);
    }
    let held = scratch.bitmap(0);
    if source == Source::Anonymous {
        for span in spans {
            // Without /proc nobody can tell; then all of it is held.
            if scan(span, held).is_err() {
                set(held, span.blocks.start, span.blocks.end - span.blocks.start);
            }
        }
    }
    let changed = bridge(held, scratch.blocks);
    absorb(held, scratch.cuts(), scratch.blocks, changed);
    for span in spans {
        if let Err(errno) = write_span(span, file, held, scratch.bitmap(1)) {
            return failed(STEP_WRITE, errno);
        }
    }
    0
}

fn wait_for_go(wait: RawFd) -> Result<(), i32> {
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte is written at most, to a place of one byte.
        match unsafe { libc::read(wait, (&raw mut byte).cast(), 1) } {
            1 => return Ok(()),
            0 => return Err(libc::EPIPE),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
}

fn errno() -> i32 {
    // SAFETY: the location is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

fn scan(span: &Span, held: &[AtomicU64]) -> io::Result<()> {
    let first = span.blocks.start;
    Pagemap::open()?.scan(
        span.address,
        span.len(),
        Wanted::Anonymous,
        &mut |offset, len| set(held, first + offset / BLOCK_SIZE, len / BLOCK_SIZE),
    )
}

/// Sets the bits of blocks `[start, start + len)`.
fn set(bitmap: &[AtomicU64], start: u64, len: u64) {
    let end = start.saturating_add(len);
    let mut at = start;
    while at < end {
        let Some(word) = bitmap.get((at / 64) as usize) else {
            return;
        };
        let (low, count) = (at % 64, (64 - at % 64).min(end - at));
        let mask = (u64::MAX >> (64 - count)) << low;
        word.fetch_or(mask, Ordering::Release);
        at += count;
    }
}

/// The first block from `from` on whose bit is `wanted`; `blocks` if none is.
fn find(bitmap: &[AtomicU64], from: u64, blocks: u64, wanted: bool) -> u64 {
    let mut at = from;
    while at < blocks {
        let Some(word) = bitmap.get((at / 64) as usize) else {
            return blocks;
        };
        let word = word.load(Ordering::Acquire);
        let word = if wanted { word } else { !word } >> (at % 64);
        if word != 0 {
            return (at + u64::from(word.trailing_zeros())).min(blocks);
        }
        at = (at / 64 + 1) * 64;
    }
    blocks
}

/// Fills gaps of up to [`BRIDGE`] blocks between runs of set bits. Returns how
/// many bits are set then.
fn bridge(held: &[AtomicU64], blocks: u64) -> u64 {
    let mut count = 0;
    let mut start = find(held, 0, blocks, true);
    while start < blocks {
        let end = find(held, start, blocks, false);
        let next = find(held, end, blocks, true);
        count += end - start;
        if next < blocks && next - end <= BRIDGE {
            set(held, end, next - end);
            count += next - end;
        }
        start = next;
    }
    count
}

/// Holds windows as a whole that have many pieces, their own and those of what
/// lies below together. `changed` is how many blocks are held already.
fn absorb(held: &[AtomicU64], cuts: &[AtomicU8], blocks: u64, changed: u64) {
    let mut budget = changed.max(ABSORB);
    for (window, below) in (0..).zip(cuts) {
        let start = window * WINDOW;
        let end = (start + WINDOW).min(blocks);
        let (mut runs, mut ours) = (0, 0);
        let mut at = find(held, start, end, true);
        while at < end {
            let stop = find(held, at, end, false);
            (runs, ours) = (runs + 1, ours + stop - at);
            at = find(held, stop, end, true);
        }
        // A run is a piece, and what lies below goes on behind it.
        let pieces = u64::from(below.load(Ordering::Relaxed)) + 2 * runs;
        let more = end - start - ours;
        // Windows that have not changed can wait until they do.
        if runs > 0 && pieces > WINDOW_PIECES && more <= budget {
            set(held, start, end - start);
            budget -= more;
        }
    }
}

/// Writes the held pages of one region, and marks those that are zero.
fn write_span(span: &Span, file: RawFd, held: &[AtomicU64], zero: &[AtomicU64]) -> Result<(), i32> {
    let (first, end) = (span.blocks.start, span.blocks.end);
    let address =
        |block: u64| (span.address + ((block - first) * BLOCK_SIZE) as usize) as *const u8;
    let mut at = find(held, first, end, true);
    while at < end {
        let run_end = find(held, at, end, false);
        let mut pending = at;
        for block in at..run_end {
            // SAFETY: the block lies within the span, which is mapped readable
            // in this process and which no other thread of it can change.
            if unsafe { is_zero(address(block)) } {
                write_all(file, address(pending), pending, block)?;
                set(zero, block, 1);
                pending = block + 1;
            }
        }
        write_all(file, address(pending), pending, run_end)?;
        at = find(held, run_end, end, true);
    }
    Ok(())
}

/// Whether a page is all zeroes.
///
/// # Safety
/// `page` must be the aligned address of a readable page.
unsafe fn is_zero(page: *const u8) -> bool {
    const WORDS: usize = BLOCK_SIZE as usize / 8;
    // SAFETY: the caller gives an aligned, readable page.
    let words = unsafe { &*page.cast::<[u64; WORDS]>() };
    // Eight words at a time, which compilers turn into vector instructions; most
    // pages differ from zero within the first.
    words
        .chunks_exact(8)
        .all(|part| part.iter().fold(0, |all, word| all | word) == 0)
}

/// Writes blocks `[from, to)` from `address` on at their place in the file.
fn write_all(file: RawFd, address: *const u8, from: u64, to: u64) -> Result<(), i32> {
    let (mut done, len) = (0, ((to - from) * BLOCK_SIZE) as usize);
    let start = from * BLOCK_SIZE;
    while done < len {
        let offset = (start + done as u64) as i64;
        // SAFETY: the pages are mapped readable for `len` bytes.
        let wrote =
            unsafe { libc::pwrite(file, address.wrapping_add(done).cast(), len - done, offset) };
        match usize::try_from(wrote) {
            Ok(0) => return Err(libc::EIO),
            Ok(wrote) => done += wrote,
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "copy_test.rs"]
mod tests;
