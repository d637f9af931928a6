//! How far a long operation is.

/// How far a long operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of blocks done.
    pub done: u64,
    /// Bytes of blocks to do in all.
    pub total: u64,
}

impl Progress {
    /// Adds up steps of so many bytes and tells `report`.
    pub(crate) fn counter(total: u64, report: &mut dyn FnMut(Self)) -> impl FnMut(u64) + use<'_> {
        let mut done = 0;
        report(Self { done, total });
        move |bytes| {
            done += bytes;
            report(Self { done, total });
        }
    }
}
