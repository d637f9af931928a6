//! Contestants that take turns, so that what the host does meanwhile falls on all
//! of them.

use std::io::IsTerminal as _;

use coppice_benches::Fallible;
use coppice_benches::spread::Spread;

type Measure<'a> = Box<dyn FnMut() -> Fallible<f64> + 'a>;

/// One of those who take turns.
pub struct Contestant<'a> {
    measure: Option<Measure<'a>>,
    /// If it fails, the others go on without it.
    dispensable: bool,
}

impl<'a> Contestant<'a> {
    /// One whose `measure` is called in each round.
    pub fn new(measure: impl FnMut() -> Fallible<f64> + 'a) -> Self {
        Self {
            measure: Some(Box::new(measure)),
            dispensable: false,
        }
    }

    /// The same with a peer, if there is one; a peer may fail.
    pub fn peer<T>(peer: Option<&'a T>, mut measure: impl FnMut(&T) -> Fallible<f64> + 'a) -> Self {
        Self {
            measure: peer.map(|peer| Box::new(move || measure(peer)) as Measure<'a>),
            dispensable: true,
        }
    }
}

/// Has each contestant measured `rounds` times, and once before to warm up. What
/// has been prepared for that is on the disk by then, so that the host does not
/// write it meanwhile.
pub fn hold<const N: usize>(
    what: &str,
    rounds: usize,
    mut contestants: [Contestant<'_>; N],
) -> Fallible<[Option<Spread>; N]> {
    nix::unistd::sync();
    let mut values = [const { Vec::new() }; N];
    for round in 0..=rounds {
        progress(what, round, rounds);
        for (contestant, values) in contestants.iter_mut().zip(&mut values) {
            let Some(measure) = &mut contestant.measure else {
                continue;
            };
            match measure() {
                Ok(value) if round > 0 => values.push(value),
                Ok(_) => {}
                Err(error) if contestant.dispensable => {
                    eprintln!("\nbench-restore: {what}: no peer from here on: {error}");
                    contestant.measure = None;
                    values.clear();
                }
                Err(error) => return Err(format!("{what}: {error}").into()),
            }
        }
    }
    Ok(values.map(Spread::of))
}

/// One line that changes on a terminal, a line for each part elsewhere.
fn progress(what: &str, round: usize, rounds: usize) {
    if std::io::stderr().is_terminal() {
        let end = if round == rounds { "\r\x1b[K" } else { "" };
        eprint!("\r\x1b[Kbench-restore: {what} {round}/{rounds}{end}");
    } else if round == 0 {
        eprintln!("bench-restore: {what}");
    }
}
