//! Sets of blocks, kept as sorted ranges that neither touch nor overlap.

use std::ops::Range;

/// Bytes in one block, the unit of everything in a layer: a page of memory, or
/// as much of a disk.
pub const BLOCK_SIZE: u64 = 4096;

/// A range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first block.
    pub start: u64,
    /// How many blocks; at least one.
    pub len: u64,
}

impl Extent {
    /// The block after the last.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// The blocks as a range.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end()
    }
}

/// A set of blocks. Its ranges are sorted, and two that touch are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

/// Ranges that are no set of blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentsError {
    /// A range has no blocks.
    #[error("its range number {0} is empty")]
    Empty(usize),
    /// A range begins before the one before it has ended, or touches it.
    #[error("its range number {0} is out of order")]
    Order(usize),
    /// A range reaches past the end.
    #[error("its range number {index} ends at block {end}, but there are only {blocks} blocks")]
    PastEnd {
        /// Which range.
        index: usize,
        /// Its end.
        end: u64,
        /// Blocks that there are.
        blocks: u64,
    },
}

impl Extents {
    /// No blocks.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// All of `blocks` blocks.
    pub fn all(blocks: u64) -> Self {
        let mut all = Self::new();
        all.push(0, blocks);
        all
    }

    /// Takes ranges as they come from a file.
    ///
    /// # Errors
    /// They are not what an [`Extents`] of at most `blocks` blocks looks like.
    pub fn checked(ranges: Vec<Extent>, blocks: u64) -> Result<Self, ExtentsError> {
        let mut free = 0;
        for (index, range) in ranges.iter().enumerate() {
            if range.len == 0 {
                return Err(ExtentsError::Empty(index));
            }
            if range.start < free {
                return Err(ExtentsError::Order(index));
            }
            let end = range.end();
            if end > blocks {
                return Err(ExtentsError::PastEnd { index, end, blocks });
            }
            // Touching ranges would be one range: then each set has one form.
            free = end + 1;
        }
        Ok(Self(ranges))
    }

    /// The set whose blocks have their bit set in `bitmap`: block `n` is bit
    /// `n % 64` of word `n / 64`. Bits from `blocks` on do not count.
    pub fn from_bitmap(bitmap: &[u64], blocks: u64) -> Self {
        let mut set = Self::new();
        for (start, len) in runs(bitmap, blocks) {
            set.push(start, len);
        }
        set
    }

    /// Adds blocks at the end. Nothing happens if `len` is 0.
    ///
    /// # Panics
    /// In debug builds, if they lie before the set's last block.
    pub fn push(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.end() == start => last.len += len,
            last => {
                debug_assert!(last.is_none_or(|last| last.end() < start), "out of order");
                self.0.push(Extent { start, len });
            }
        }
    }

    /// The ranges in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Extent> {
        self.0.iter()
    }

    /// The number of ranges.
    pub fn ranges(&self) -> usize {
        self.0.len()
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|extent| extent.len).sum()
    }

    /// There are no blocks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `block` is in the set.
    pub fn contains(&self, block: u64) -> bool {
        let after = self.0.partition_point(|extent| extent.start <= block);
        after > 0 && self.0[after - 1].end() > block
    }

    /// The parts of its ranges that lie within `range`, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|extent| extent.end() <= range.start);
        self.0[first..]
            .iter()
            .map(move |extent| extent.start.max(range.start)..extent.end().min(range.end))
            .take_while(|part| !part.is_empty())
    }

    /// The blocks of `self` that are not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        let mut rest = Self::new();
        let mut taken = other.0.iter().copied().peekable();
        for extent in &self.0 {
            let mut at = extent.start;
            while at < extent.end() {
                while taken.next_if(|taken| taken.end() <= at).is_some() {}
                let Some(next) = taken.peek().filter(|next| next.start < extent.end()) else {
                    break;
                };
                if next.start > at {
                    rest.push(at, next.start - at);
                }
                at = next.end();
            }
            if at < extent.end() {
                rest.push(at, extent.end() - at);
            }
        }
        rest
    }

    /// Whether all blocks of `other` are in `self`.
    pub fn covers(&self, other: &Self) -> bool {
        other.minus(self).is_empty()
    }
}

impl<'a> IntoIterator for &'a Extents {
    type Item = &'a Extent;
    type IntoIter = std::slice::Iter<'a, Extent>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Runs of set bits of a bitmap as `(start, length)`, in order; see
/// [`Extents::from_bitmap`]. Allocates nothing.
pub fn runs(bitmap: &[u64], blocks: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = next(bitmap, at, blocks, true)?;
        at = next(bitmap, start, blocks, false).unwrap_or(blocks);
        Some((start, at - start))
    })
}

/// The first block from `from` on whose bit is `set`, below `blocks`.
pub(crate) fn next(bitmap: &[u64], from: u64, blocks: u64, set: bool) -> Option<u64> {
    let mut at = from;
    while at < blocks {
        let word = usize::try_from(at / 64).ok().and_then(|n| bitmap.get(n));
        let word = word.copied().unwrap_or(0);
        let word = if set { word } else { !word } >> (at % 64);
        if word != 0 {
            let found = at + u64::from(word.trailing_zeros());
            return (found < blocks).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
#[path = "extents_test.rs"]
mod tests;
