//! Guest memory as a stack of layers with a private top.
//!
//! A layer's blocks are the machine's memory from address 0 on with the MMIO
//! gap left out: the regions laid end to end. The layers are mapped
//! copy-on-write, so that machines on the same stack share its pages through
//! the page cache, and what a machine changes becomes anonymous memory of its
//! own: the private top.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use coppice_snapshot::{BLOCK_SIZE, Extents, Layer, Stack};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

use super::GuestMemory;
use crate::sys::map;

/// Zero blocks of a layer are not mapped if so many follow one another: the
/// anonymous memory below is as good, and a page that the guest writes costs no
/// copy. Fewer are not worth a mapping of their own.
const WORTH_LEAVING_OUT: u64 = 256;

/// Where the file of `layer` lies now: where it was opened, or beside that under
/// its own name, as a later snapshot at the same path leaves it. Nowhere, if it
/// was removed.
pub fn place(layer: &Layer) -> Option<PathBuf> {
    let open = layer.file().metadata().ok()?;
    let path = std::path::absolute(layer.path()).ok()?;
    let second = path.with_file_name(layer.name().to_string());
    [path, second].into_iter().find(|path| {
        fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (open.dev(), open.ino()))
    })
}

/// One region of guest memory as a range of blocks and of addresses of this
/// process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its blocks among those of all memory.
    pub blocks: Range<u64>,
    /// Where it begins in this process.
    pub address: usize,
}

impl Span {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        ((self.blocks.end - self.blocks.start) * BLOCK_SIZE) as usize
    }

    /// Never true for memory that exists.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// The regions of `memory`, laid end to end.
pub fn spans(memory: &GuestMemory) -> Vec<Span> {
    let mut free = 0;
    memory
        .iter()
        .filter_map(|region| {
            let address = region.get_host_address(MemoryRegionAddress(0)).ok()? as usize;
            let blocks = free..free + region.len() / BLOCK_SIZE;
            free = blocks.end;
            Some(Span { blocks, address })
        })
        .collect()
}

/// Blocks of all of `memory`.
pub fn blocks(memory: &GuestMemory) -> u64 {
    spans(memory).last().map_or(0, |span| span.blocks.end)
}

/// Maps the layers of `stack` over `memory`, which nobody has written to yet.
///
/// # Errors
/// The host refuses a mapping, for want of address space or because it has a
/// limit on their number.
pub fn map_stack(memory: &GuestMemory, stack: &Stack) -> io::Result<()> {
    let spans = spans(memory);
    for run in runs(stack) {
        let layer = &stack.layers()[run.layer];
        for span in &spans {
            let start = run.blocks.start.max(span.blocks.start);
            let end = run.blocks.end.min(span.blocks.end);
            if start >= end {
                continue;
            }
            let at = (start - span.blocks.start) * BLOCK_SIZE;
            let len = (end - start) * BLOCK_SIZE;
            // SAFETY: the range lies within the span, which is a mapping of
            // guest memory: it is only ever reached by raw pointers, and it is
            // not in use yet.
            unsafe {
                map::overlay(
                    (span.address + at as usize) as *mut _,
                    layer.file().as_fd(),
                    start * BLOCK_SIZE,
                    len as usize,
                )
            }?;
        }
    }
    Ok(())
}

/// How many mappings [`map_stack`] would make of `stack`.
pub fn mappings(stack: &Stack) -> usize {
    runs(stack).len()
}

/// The first blocks of those mappings.
pub fn starts(stack: &Stack) -> impl Iterator<Item = u64> {
    runs(stack).into_iter().map(|run| run.blocks.start)
}

/// Blocks that one mapping gives.
struct Run {
    blocks: Range<u64>,
    layer: usize,
}

/// The pieces of `stack` without long stretches of zeroes.
fn runs(stack: &Stack) -> Vec<Run> {
    let left_out: Vec<Extents> = stack
        .layers()
        .iter()
        .map(|layer| {
            let mut long = Extents::new();
            for extent in layer.zero() {
                if extent.len >= WORTH_LEAVING_OUT {
                    long.push(extent.start, extent.len);
                }
            }
            long
        })
        .collect();
    let mut runs = Vec::new();
    for piece in stack.resolve() {
        let (layer, end) = (piece.layer, piece.start + piece.len);
        let mut at = piece.start;
        for gap in left_out[layer].within(piece.start..end) {
            if gap.start > at {
                runs.push(Run {
                    blocks: at..gap.start,
                    layer,
                });
            }
            at = gap.end;
        }
        if at < end {
            runs.push(Run {
                blocks: at..end,
                layer,
            });
        }
    }
    runs
}

#[cfg(test)]
#[path = "layers_test.rs"]
mod tests;
