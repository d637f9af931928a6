//! Which of a machine's pages are in which layer, and which have changed since.
//!
//! The pages that a machine has of its own are anonymous; the others are those
//! of the stack that it was restored from. So the first snapshot needs no
//! tracking at all. For the next, pages are marked when one is taken, and a page
//! that is written loses its mark. Marks are set while the machine still runs,
//! so what is written between then and the freeze belongs to both snapshots,
//! which is harmless; and looked at when it runs again, so what it has written
//! meanwhile may be in a layer without need. The pause itself is one fork.
//!
//! Where the kernel has no marks, each snapshot has everything that changed
//! since the machine was started or restored.

use std::fs::File;

use coppice_snapshot::{BLOCK_SIZE, Stack};

use super::GuestMemory;
use super::copy::{Copied, Copy, CopyError, Scratch, Source};
use super::layers::{self, Span};
use crate::sys::fork::Killer;
use crate::sys::pagemap::{Pagemap, Wanted};
use crate::sys::userfault::WriteMarks;

/// What is known of a machine's memory.
pub struct Tracker {
    spans: Vec<Span>,
    /// What is mapped below the machine's own pages.
    mapped: Stack,
    marks: Option<WriteMarks>,
    /// The stack that the machine's memory was equal to when all of its pages
    /// were marked for the last time.
    marked: Option<Stack>,
}

/// A copy that is prepared. Nothing is paused yet.
pub struct Plan {
    scratch: Scratch,
    source: Source,
    /// The stack that the copy will be the top of.
    base: Stack,
}

/// A copy that is being made.
pub struct Running {
    copy: Copy,
    source: Source,
    base: Stack,
}

impl Tracker {
    /// For a memory that consists of the `mapped` stack and pages of its own.
    pub fn new(memory: &GuestMemory, mapped: Stack) -> Self {
        Self {
            spans: layers::spans(memory),
            mapped,
            marks: None,
            marked: None,
        }
    }

    /// Prepares a copy: of everything if `full`, otherwise of what has changed
    /// since the last one, or if there was none since the machine was started or
    /// restored. Until [`Tracker::kept`] is called there is no last one. If a
    /// layer below has been removed meanwhile, it is of everything.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn plan(&mut self, full: bool) -> Result<Plan, CopyError> {
        let blocks = self.spans.last().map_or(0, |span| span.blocks.end);
        let scratch = Scratch::new(blocks)?;
        let marked = self.marked.take().filter(is_there);
        // A layer that nobody finds any more cannot lie below.
        let full = full || !is_there(&self.mapped);
        if let Some(base) = marked.filter(|_| !full)
            && self.mark(Some(&scratch))
        {
            cut(&scratch, &base);
            return Ok(Plan {
                scratch,
                source: Source::Marked,
                base,
            });
        }
        let base = if full {
            // What is not the machine's own may still be data of the stack.
            for layer in self.mapped.layers() {
                for extent in &layer.data() {
                    scratch.mark(extent.start, extent.len);
                }
            }
            Stack::default()
        } else {
            cut(&scratch, &self.mapped);
            self.mapped.clone()
        };
        if !self.mark(None) {
            self.marks = None;
        }
        Ok(Plan {
            scratch,
            source: Source::Anonymous,
            base,
        })
    }

    /// Forks the helper. The machine must be at rest, and may run again as soon
    /// as this returns.
    ///
    /// # Errors
    /// The host refuses a process.
    pub fn start(&self, plan: Plan, file: &File) -> Result<Running, CopyError> {
        let Plan {
            scratch,
            source,
            base,
        } = plan;
        let copy = Copy::start(&self.spans, file, source, scratch)?;
        Ok(Running { copy, source, base })
    }

    /// The machine may run again: lets the helper write.
    ///
    /// # Errors
    /// It is gone, or it cannot be said what has changed.
    pub fn proceed(&self, running: &mut Running) -> Result<(), CopyError> {
        if let (Source::Marked, Some(marks)) = (running.source, &self.marks) {
            let copy = &running.copy;
            self.scan(Wanted::Written(marks), &mut |start, len| {
                copy.mark(start, len);
            })
            .map_err(|source| CopyError::Host {
                what: "tell which pages have changed",
                source,
            })?;
        }
        running.copy.go()
    }

    /// The copy has become the topmost layer of `stack`: the next one holds
    /// what has changed since.
    pub fn kept(&mut self, stack: Stack) {
        self.marked = self.marks.is_some().then_some(stack);
    }

    /// Marks all pages, and has `scratch` hold those that had no mark. False if
    /// the kernel cannot.
    fn mark(&mut self, scratch: Option<&Scratch>) -> bool {
        let result = (|| {
            if self.marks.is_none() {
                let marks = WriteMarks::new()?;
                for span in &self.spans {
                    marks.add(span.address, span.len())?;
                }
                self.marks = Some(marks);
            }
            match &self.marks {
                Some(marks) => self.scan(Wanted::WrittenAndMark(marks), &mut |start, len| {
                    if let Some(scratch) = scratch {
                        scratch.mark(start, len);
                    }
                }),
                None => Ok(()),
            }
        })();
        if let Err(error) = &result {
            log::info!(
                "the kernel cannot tell which pages change from now on ({error}), so the next \
                 snapshot will hold all that changed since the start or restore"
            );
        }
        result.is_ok()
    }

    /// Calls `found` with ranges of blocks that are `wanted`.
    fn scan(&self, wanted: Wanted<'_>, found: &mut dyn FnMut(u64, u64)) -> std::io::Result<()> {
        let pagemap = Pagemap::open()?;
        for span in &self.spans {
            let first = span.blocks.start;
            pagemap.scan(span.address, span.len(), wanted, &mut |offset, len| {
                found(first + offset / BLOCK_SIZE, len / BLOCK_SIZE);
            })?;
        }
        Ok(())
    }
}

/// Whether all layers of `stack` still have a path.
fn is_there(stack: &Stack) -> bool {
    let mut layers = stack.layers().iter();
    layers.all(|layer| layers::place(layer).is_some())
}

/// Tells the helper where the pieces of `base` begin.
fn cut(scratch: &Scratch, base: &Stack) {
    for start in layers::starts(base) {
        scratch.cut(start);
    }
}

impl Running {
    /// What ends the helper early.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn killer(&self) -> Result<Killer, CopyError> {
        self.copy.killer()
    }

    /// Waits until everything is written. Returns what was, and the stack that
    /// it belongs on.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(self) -> Result<(Copied, Stack), CopyError> {
        Ok((self.copy.finish()?, self.base))
    }
}
