//! A hundred restores of one snapshot.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use coppice_benches::Fallible;

use crate::process::Process;
use crate::prompt::be_prompt;
use crate::pss;

/// How many machines there are in the end.
const MACHINES: usize = 100;
/// How often one is tried: under load KVM interrupts calls, and not every VMM
/// calls again.
const TRIES: usize = 5;

/// Has `start` called a hundred times, `width` at a time. Returns the machines, and
/// the time that all of it took, in milliseconds.
pub fn restore(
    width: usize,
    start: &(dyn Fn() -> Fallible<Process> + Sync),
) -> Fallible<(Vec<Process>, f64)> {
    let next = AtomicUsize::new(0);
    let machines = Mutex::new(Vec::new());
    let begin = Instant::now();
    thread::scope(|scope| {
        let worker = || -> Fallible<()> {
            be_prompt();
            while next.fetch_add(1, Ordering::Relaxed) < MACHINES {
                let process = persist(start)?;
                let mut machines = machines.lock().unwrap_or_else(|error| error.into_inner());
                machines.push(process);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..width).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or(Err("a thread panicked".into())))
    })?;
    let took = begin.elapsed().as_secs_f64() * 1000.0;
    let machines = machines
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    Ok((machines, took))
}

fn persist(start: &(dyn Fn() -> Fallible<Process> + Sync)) -> Fallible<Process> {
    let mut result = start();
    for _ in 1..TRIES {
        match result {
            Ok(process) => return Ok(process),
            Err(error) => eprintln!("bench-restore: tried again: {error}"),
        }
        result = start();
    }
    result
}

/// Waits for the guest's first mark, and stops the process there, so that it needs
/// no more of the CPUs than a machine that is idle.
pub fn until_mark(mut process: Process) -> Fallible<Process> {
    process.first_mark()?;
    process.halt()?;
    Ok(process)
}

/// Ends machines, many at once: KVM takes its time for each.
pub fn end(machines: Vec<Process>) {
    thread::scope(|scope| {
        for machine in machines {
            scope.spawn(|| drop(machine));
        }
    });
}

/// What each of `machines` costs beside shared pages of `memory`, in KiB.
pub fn costs(machines: &[Process], memory: &Path) -> Fallible<Vec<f64>> {
    let each = machines.iter();
    each.map(|machine| pss::outside(machine.pid(), memory))
        .collect()
}
