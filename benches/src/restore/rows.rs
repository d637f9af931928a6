//! What is measured, row by row.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

use coppice_benches::Fallible;
use coppice_benches::spread::Spread;

use crate::chain;
use crate::contest::{Contestant, hold};
use crate::hundred;
use crate::process::Process;
use crate::report::Row;
use crate::tools::{self, ForkFloor, Guest, QUIET, Shape};
use crate::vmm::{Snapshot, Vmm};

/// How often everything is measured; the round before is not counted.
pub const ROUNDS: usize = 15;
/// Rounds that find out how many restores at once are best.
const TRIALS: usize = 2;
/// Rounds of what is only measured for information and takes long.
const FEW_ROUNDS: usize = 5;
/// How many restores at once are tried.
const WIDTHS: [usize; 3] = [4, 8, 16];
/// The machine of which full snapshots are made, and how much of it is in use.
const FULL_MIB: u64 = 512;
const FULL_USED_MIB: u64 = 64;
/// Memory in use by the machine that is forked, and its size.
const RESIDENT_MIB: u64 = 1536;
const FORKED_MIB: u64 = 2048;
/// Pages in a MiB.
const PAGES: u64 = 256;

/// Who is measured, and with what.
pub struct Bench {
    /// Coppice.
    pub ours: Vmm,
    /// Firecracker, if there is one.
    pub peer: Option<Vmm>,
    /// The floor program.
    pub floor: PathBuf,
    /// Only rows with this in their names.
    pub only: Option<String>,
}

/// One snapshot of the same guest for each of those who restore.
struct Snapshots {
    ours: Snapshot,
    peer: Option<Snapshot>,
    floor: Snapshot,
}

impl Bench {
    /// Measures everything.
    pub fn run(&self) -> Fallible<Vec<Row>> {
        let mut rows = Vec::new();
        for (size, mib) in [("128 MiB", 128), ("1 GiB", 1024), ("4 GiB", 4096)] {
            if self.wanted(&format!("restore {size}")) {
                rows.extend(self.restore(size, mib)?);
            }
        }
        if self.wanted("100 restores, pss") {
            rows.extend(self.hundred()?);
        }
        if self.wanted("snapshot full") {
            rows.push(self.full()?);
        }
        if self.wanted("snapshot incremental") {
            rows.extend(self.incremental()?);
        }
        if self.wanted("fork pause") {
            rows.push(self.fork_pause()?);
        }
        if self.wanted("chain of 10") {
            rows.extend(chain::measure(&self.ours)?);
        }
        Ok(rows)
    }

    fn wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|word| name.contains(word))
    }

    /// From the start of the process to the first byte of the restored guest.
    fn restore(&self, size: &str, mib: u64) -> Fallible<[Row; 2]> {
        let guest = tools::guest("quiet", &QUIET)?;
        let snapshots = self.snapshots(&guest, mib)?;
        let name = format!("restore {size}");
        let [ours, api, peer, floor] = hold(
            &name,
            ROUNDS,
            [
                Contestant::new(|| self.ours.restore_directly(&snapshots.ours)?.first_mark()),
                Contestant::new(|| self.ours.restore(&snapshots.ours)?.first_mark()),
                self.contest_peer(snapshots.peer.as_ref(), |vmm, peer| {
                    vmm.restore(peer)?.first_mark()
                }),
                Contestant::new(|| self.restore_floor(&snapshots.floor)?.first_mark()),
            ],
        )?;
        snapshots.remove()?;
        Ok([
            Row::new(&name, "ms", [ours, peer, floor])
                .target("0.35 × peer, 2.5 × floor")
                .note("start of the process to the guest's first byte; one vCPU, block, vsock"),
            Row::new(&name, "ms", [api, peer, floor])
                .beside("through the API")
                .note("the same with PUT /snapshot/load instead of the command line"),
        ])
    }

    /// A hundred restores, and what each of them costs in memory.
    fn hundred(&self) -> Fallible<[Row; 3]> {
        let guest = tools::guest("quiet", &QUIET)?;
        let snapshots = self.snapshots(&guest, 128)?;
        let costs: [RefCell<Vec<f64>>; 3] = Default::default();
        let run = |who: usize, width: usize, snapshot: &Snapshot, start: Start<'_>| {
            let (machines, took) = hundred::restore(width, start)?;
            *costs[who].borrow_mut() = hundred::costs(&machines, &snapshot.memory)?;
            hundred::end(machines);
            Ok(took)
        };
        let until_mark = hundred::until_mark;
        let figures = at_best("100 restores", ROUNDS, |name, rounds, widths| {
            let ours = || {
                let snapshot = &snapshots.ours;
                let start = || until_mark(self.ours.restore_directly(snapshot)?);
                run(0, widths[0], snapshot, &start)
            };
            let peer = |vmm: &Vmm, snapshot: &Snapshot| {
                let start = || until_mark(vmm.restore(snapshot)?);
                run(1, widths[1], snapshot, &start)
            };
            let floor = || {
                let snapshot = &snapshots.floor;
                let start = || until_mark(self.restore_floor(snapshot)?);
                run(2, widths[2], snapshot, &start)
            };
            let contestants = [
                Contestant::new(ours),
                self.contest_peer(snapshots.peer.as_ref(), peer),
                Contestant::new(floor),
            ];
            hold(name, rounds, contestants)
        })?;
        let costs = costs.map(|costs| Spread::of(costs.into_inner()));

        let load = |vmm: &Vmm, snapshot: &Snapshot, width: usize| {
            let (machines, took) = hundred::restore(width, &|| vmm.load(snapshot))?;
            hundred::end(machines);
            Ok(took)
        };
        let paused = at_best(
            "100 restores, paused",
            FEW_ROUNDS,
            |name, rounds, widths| {
                let contestants = [
                    Contestant::new(|| load(&self.ours, &snapshots.ours, widths[0])),
                    self.contest_peer(snapshots.peer.as_ref(), |vmm, snapshot| {
                        load(vmm, snapshot, widths[1])
                    }),
                ];
                hold(name, rounds, contestants)
            },
        )?;
        snapshots.remove()?;

        let ([ours, peer, floor], widths) = figures;
        let until = "to the first byte of the last guest, 128 MiB each";
        let row = Row::new("100 restores", "ms", [ours, peer, floor])
            .target("0.6 × peer")
            .note(&format!(
                "{until}; {}",
                widths_in_words(&[ours, peer, floor], &widths)
            ));
        let ([ours, peer], widths) = paused;
        let until = "until the last PUT /snapshot/load is answered; no guest runs";
        Ok([
            row,
            Row::new("100 restores", "ms", [ours, peer, None])
                .beside("paused")
                .note(&format!(
                    "{until}; {}",
                    widths_in_words(&[ours, peer], &widths)
                )),
            Row::new("pss", "KiB", costs).target("0.8 × peer").note(
                "of each of 100 idle machines, without pages of guest memory that they share",
            ),
        ])
    }

    /// A full snapshot, as its client sees it.
    fn full(&self) -> Fallible<Row> {
        let shape = Shape {
            touch: FULL_USED_MIB * PAGES,
            ..QUIET
        };
        let guest = tools::guest("full", &shape)?;
        let mut ours = self.ours.boot(&guest, FULL_MIB)?;
        ours.pause()?;
        let peer = match &self.peer {
            Some(vmm) => {
                let mut machine = vmm.boot(&guest, FULL_MIB)?;
                machine.pause()?;
                Some(RefCell::new(machine))
            }
            None => None,
        };
        let create = |machine: &mut crate::vmm::Machine| {
            let snapshot = Snapshot::new();
            let took = machine.create("Full", &snapshot)?;
            snapshot.remove()?;
            Ok(took)
        };
        let [ours, peer] = hold(
            "snapshot full",
            ROUNDS,
            [
                Contestant::new(|| create(&mut ours)),
                Contestant::peer(peer.as_ref(), |machine| create(&mut machine.borrow_mut())),
            ],
        )?;
        let note = format!("of a paused machine of {FULL_MIB} MiB, {FULL_USED_MIB} MiB of it used");
        Ok(Row::new("snapshot full", "ms", [ours, peer, None]).note(&note))
    }

    /// Snapshots of what has changed: of 16 MiB in machines of two sizes.
    fn incremental(&self) -> Fallible<Vec<Row>> {
        let shape = Shape {
            window: QUIET.touch,
            ..QUIET
        };
        let guest = tools::guest("changing", &shape)?;
        let small = self.changing_snapshots(&guest, 128)?;
        let large = self.changing_snapshots(&guest, 4096)?;
        let [ours_small, peer_small, ours_large, peer_large] = hold(
            "snapshot incremental",
            ROUNDS,
            [
                Contestant::new(|| save_changes(&self.ours, &small.0, true)),
                self.contest_peer(small.1.as_ref(), |vmm, peer| save_changes(vmm, peer, false)),
                Contestant::new(|| save_changes(&self.ours, &large.0, true)),
                self.contest_peer(large.1.as_ref(), |vmm, peer| save_changes(vmm, peer, false)),
            ],
        )?;
        for snapshot in [Some(small.0), small.1, Some(large.0), large.1] {
            snapshot.map_or(Ok(()), |snapshot| snapshot.remove())?;
        }
        let note = "of a paused machine that was restored and has written to 16 MiB";
        let rows = [
            Row::new(
                "snapshot incremental 128 MiB",
                "ms",
                [ours_small, peer_small, None],
            )
            .note(note),
            Row::new(
                "snapshot incremental 4 GiB",
                "ms",
                [ours_large, peer_large, ours_small],
            )
            .target("1.3 × floor")
            .note("the same; the floor is the row before"),
        ];
        Ok(rows.into())
    }

    /// For how long a machine is paused by a snapshot while it runs.
    fn fork_pause(&self) -> Fallible<Row> {
        let shape = Shape {
            touch: RESIDENT_MIB * PAGES,
            ..QUIET
        };
        let guest = tools::guest("large", &shape)?;
        let mut machine = self.ours.boot(&guest, FORKED_MIB)?;
        let mut plain = ForkFloor::start(&self.floor, RESIDENT_MIB)?;
        let mut snapshots = Vec::new();
        let [ours, floor] = hold(
            "fork pause",
            ROUNDS,
            [
                Contestant::new(|| {
                    let snapshot = Snapshot::new();
                    let pause = machine.create_live(&snapshot)?;
                    snapshots.push(snapshot);
                    Ok(pause)
                }),
                Contestant::new(|| plain.fork()),
            ],
        )?;
        drop(machine);
        for snapshot in snapshots {
            snapshot.remove()?;
        }
        let note = format!(
            "of a running machine with {RESIDENT_MIB} MiB in use; the floor is one fork(2) of a \
             process with as much"
        );
        Ok(Row::new("fork pause", "ms", [ours, None, floor])
            .target("1.5 × floor")
            .note(&note))
    }

    fn contest_peer<'a, T>(
        &'a self,
        with: Option<&'a T>,
        mut measure: impl FnMut(&Vmm, &T) -> Fallible<f64> + 'a,
    ) -> Contestant<'a> {
        let vmm = self.peer.as_ref();
        Contestant::peer(with, move |with| {
            measure(vmm.ok_or("it does not exist")?, with)
        })
    }

    fn snapshots(&self, guest: &Guest, mib: u64) -> Fallible<Snapshots> {
        Ok(Snapshots {
            ours: self.ours.snapshot(guest, mib)?,
            peer: self.peer_snapshot(guest, mib)?,
            floor: self.floor_snapshot(guest, mib)?,
        })
    }

    fn changing_snapshots(
        &self,
        guest: &Guest,
        mib: u64,
    ) -> Fallible<(Snapshot, Option<Snapshot>)> {
        Ok((
            self.ours.snapshot(guest, mib)?,
            self.peer_snapshot(guest, mib)?,
        ))
    }

    fn peer_snapshot(&self, guest: &Guest, mib: u64) -> Fallible<Option<Snapshot>> {
        let peer = self.peer.as_ref();
        peer.map(|vmm| vmm.snapshot(guest, mib)).transpose()
    }

    /// A machine for the floor program to restore.
    fn floor_snapshot(&self, guest: &Guest, mib: u64) -> Fallible<Snapshot> {
        let snapshot = Snapshot::new();
        let mut command = Command::new(&self.floor);
        command.arg("save").arg(&guest.flat).arg(mib.to_string());
        command.args([&snapshot.state, &snapshot.memory]);
        tools::succeed(&mut command)?;
        Ok(snapshot)
    }

    fn restore_floor(&self, snapshot: &Snapshot) -> Fallible<Process> {
        let mut command = Command::new(&self.floor);
        command
            .arg("restore")
            .args([&snapshot.state, &snapshot.memory]);
        Process::start(&mut command, Vec::new())
    }
}

/// Finds out for each contestant how many at once are best, and then measures them
/// so. Returns those numbers, too.
fn at_best<const N: usize>(
    what: &str,
    rounds: usize,
    measure: impl Fn(&str, usize, [usize; N]) -> Fallible<[Option<Spread>; N]>,
) -> Fallible<([Option<Spread>; N], [usize; N])> {
    let mut best = [(f64::INFINITY, WIDTHS[0]); N];
    for width in WIDTHS {
        let figures = measure(&format!("{what}, {width} at once"), TRIALS, [width; N])?;
        for (best, figure) in best.iter_mut().zip(figures) {
            let median = figure.map_or(f64::INFINITY, |figure| figure.median);
            if median < best.0 {
                *best = (median, width);
            }
        }
    }
    let widths = best.map(|(_, width)| width);
    Ok((measure(what, rounds, widths)?, widths))
}

fn widths_in_words(figures: &[Option<Spread>], widths: &[usize]) -> String {
    let names = ["ours", "peer", "floor"].into_iter().zip(widths);
    let there = names.zip(figures).filter(|(_, figure)| figure.is_some());
    let words: Vec<_> = there
        .map(|((name, width), _)| format!("{width} ({name})"))
        .collect();
    format!("{} at once", words.join(", "))
}

/// Starts a machine.
type Start<'a> = &'a (dyn Fn() -> Fallible<Process> + Sync);

impl Snapshots {
    fn remove(&self) -> Fallible<()> {
        let all = [Some(&self.ours), self.peer.as_ref(), Some(&self.floor)];
        all.into_iter().flatten().try_for_each(Snapshot::remove)
    }
}

/// Restores a machine, has it change its memory, and saves what has changed.
fn save_changes(vmm: &Vmm, base: &Snapshot, has_report: bool) -> Fallible<f64> {
    let mut machine = vmm.restore_to_save(base)?;
    // Between two marks all of the window is written to.
    machine.marks.wait(2)?;
    machine.pause()?;
    let snapshot = Snapshot::new();
    let took = machine.create("Diff", &snapshot)?;
    if has_report {
        let held = machine.report()?["held_blocks"].as_u64().unwrap_or(0);
        if !(QUIET.touch..QUIET.touch + 64).contains(&held) {
            let expected = QUIET.touch;
            return Err(format!("{held} blocks were saved instead of about {expected}").into());
        }
    }
    drop(machine);
    snapshot.remove()?;
    Ok(took)
}
