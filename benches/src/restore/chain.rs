//! Restores of a snapshot that stands on others, against one that stands alone.

use coppice_benches::Fallible;

use crate::contest::{Contestant, hold};
use crate::report::Row;
use crate::rows::ROUNDS;
use crate::tools::{self, Shape};
use crate::vmm::{Snapshot, Vmm};

/// Incremental snapshots on top of the full one.
const LINKS: usize = 10;
const MIB: u64 = 128;

/// Each link changes a few pieces of memory that lie together.
const TOGETHER: Shape = Shape {
    touch: 4096,
    window: 64,
    stride: 1,
    range: 24 << 10,
};
/// Each link changes pages that lie apart: no two of them can be mapped at once.
const APART: Shape = Shape {
    window: 8,
    stride: 16,
    ..TOGETHER
};

/// Measures both.
pub fn measure(vmm: &Vmm) -> Fallible<[Row; 2]> {
    let row = |shape: &Shape, what: &str| -> Fallible<Row> {
        let (chain, flat) = build(vmm, shape)?;
        let [chained, alone] = hold(
            &format!("chain of {LINKS}, changes that lie {what}"),
            ROUNDS,
            [
                Contestant::new(|| {
                    let top = chain.last().ok_or("the chain is empty")?;
                    vmm.restore_directly(top)?.first_mark()
                }),
                Contestant::new(|| vmm.restore_directly(&flat)?.first_mark()),
            ],
        )?;
        chain.iter().chain([&flat]).try_for_each(Snapshot::remove)?;
        let note =
            format!("restore on {LINKS} layers, {what}; the floor: the same state as one layer");
        Ok(Row::new("chain of 10", "ms", [chained, None, alone])
            .target("1.2 × floor")
            .note(&note))
    };
    Ok([
        row(&TOGETHER, "together")?,
        row(&APART, "apart")?.beside("scattered"),
    ])
}

/// A chain of snapshots, lowest first, and one of the same state that stands alone.
fn build(vmm: &Vmm, shape: &Shape) -> Fallible<(Vec<Snapshot>, Snapshot)> {
    let guest = tools::guest("walking", shape)?;
    let mut below = vmm.snapshot(&guest, MIB)?;
    let mut chain = vec![below.clone()];
    let mut link = 0;
    loop {
        link += 1;
        let mut machine = vmm.restore_to_save(&below)?;
        machine.marks.wait(8)?;
        machine.pause()?;
        below = Snapshot::new();
        machine.create("Diff", &below)?;
        chain.push(below.clone());
        if link == LINKS {
            let flat = Snapshot::new();
            machine.create("Full", &flat)?;
            return Ok((chain, flat));
        }
    }
}
