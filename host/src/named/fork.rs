//! `coppice fork`: machines from one that runs.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coppice_snapshot::Manifest;
use nix::poll::{PollFd, PollFlags};
use serde::Serialize;

use super::chorus::{Chorus, GRACE};
use super::dir::{Held, Place};
use super::grow::Seed;
use super::name::Name;
use super::record::Facts;
use super::running::Running;
use super::sharing::Memory;
use super::stop::stop_one;
use crate::api::{Extent, Freeze};
use crate::cli::ForkArgs;
use crate::error::Error;
use crate::locate::{self, VMM};
use crate::report::ms;
use crate::signals::{Arrived, Signals};
use crate::snapshot::{Failure, text};
use crate::wait;

/// What became of a fork.
#[derive(Debug, Serialize)]
struct Report {
    parent: Name,
    /// For how long the parent did not run, in milliseconds.
    pause_ms: f64,
    /// From the beginning until the children could start, in milliseconds.
    freeze_ms: f64,
    children: Vec<Child>,
    /// The memory of all that came up.
    memory: Memory,
    parent_memory: Option<Memory>,
}

/// One of the new machines. Times count from the beginning of it all.
#[derive(Debug, Serialize)]
struct Child {
    name: Name,
    /// `COPPICE_FORK`.
    number: usize,
    pid: Option<i32>,
    /// When its VMM was started, in milliseconds.
    start_ms: Option<f64>,
    /// When it was one of its own, in milliseconds.
    ready_ms: Option<f64>,
    /// When the command's first output came, in milliseconds.
    first_output_ms: Option<f64>,
    exit_code: Option<u8>,
    memory: Option<Memory>,
    /// Why it did not come up.
    error: Option<String>,
}

/// What is needed to let the children grow.
struct Frozen {
    pause_ms: f64,
    freeze_ms: f64,
    seed: Seed,
    parent_pid: i32,
    /// Keeps the snapshot as long as they grow.
    _files: super::frozen::Frozen,
}

/// Forks a machine and says what came of it.
pub fn fork(args: ForkArgs) -> ExitCode {
    match attempt(&args) {
        Ok((report, code)) => {
            let told = match (args.json, args.argv.is_empty()) {
                (true, _) => crate::print(text::json(&report).as_bytes()),
                (false, true) => crate::print(people(&report).as_bytes()),
                (false, false) => {
                    // Standard output is the commands'.
                    eprint!("{}", people(&report));
                    ExitCode::SUCCESS
                }
            };
            match code {
                0 => told,
                code => code.into(),
            }
        }
        Err(error) => {
            eprintln!("coppice: {error}");
            error.exit_code().into()
        }
    }
}

fn attempt(args: &ForkArgs) -> Result<(Report, u8), Error> {
    let began = Instant::now();
    let place = Place::open()?;
    let running = Running::hold(&place, &args.name)?;
    let claimed = claim(&place, args)?;
    let frozen = match freeze(&place, running, args, began) {
        Ok(frozen) => frozen,
        Err(error) => {
            claimed.into_iter().for_each(|(_, held)| give_up(held));
            return Err(error);
        }
    };
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let chorus = Chorus::new(args.argv.clone(), args.options(), args.json);
    let mut children = all_at_once(&frozen.seed, claimed, &chorus, &signals, began)?;
    for child in &mut children {
        child.memory = child.pid.and_then(|pid| Memory::of(pid).ok());
    }
    let report = Report {
        parent: args.name.clone(),
        pause_ms: frozen.pause_ms,
        freeze_ms: frozen.freeze_ms,
        memory: children.iter().filter_map(|child| child.memory).sum(),
        parent_memory: Memory::of(frozen.parent_pid).ok(),
        children,
    };
    drop(frozen);
    let mut code = match chorus.ended() {
        Some(signal) => signal.saturating_add(128),
        None => code(&report.children),
    };
    if args.rm {
        for child in report.children.iter().filter(|child| child.pid.is_some()) {
            match stop_one(&place, &child.name, None) {
                // One whose guest switched it off may be swept already.
                Ok(()) | Err(Error::NoMachine(_)) => {}
                Err(error) => {
                    eprintln!("coppice: {error}");
                    code = code.max(Error::FAILURE);
                }
            }
        }
    }
    Ok((report, code))
}

/// Makes the directories of all children, or of none.
fn claim(place: &Place, args: &ForkArgs) -> Result<Vec<(Name, Held)>, Error> {
    let prefix = args.prefix.as_ref().unwrap_or(&args.name);
    let mut claimed = Vec::new();
    for number in 1..=args.count {
        let name: Result<Name, String> = format!("{prefix}-{number}").parse();
        let made = name.map_err(Error::ChildName).and_then(|name| {
            let held = place.create(&name)?;
            Ok((name, held))
        });
        match made {
            Ok(child) => claimed.push(child),
            Err(error) => {
                claimed.into_iter().for_each(|(_, held)| give_up(held));
                return Err(error);
            }
        }
    }
    Ok(claimed)
}

fn give_up(held: Held) {
    if let Err(left) = held.remove() {
        eprintln!("coppice: {left}");
    }
}

/// Freezes the parent, which others can stop or freeze again afterwards.
fn freeze(
    place: &Place,
    running: Running,
    args: &ForkArgs,
    began: Instant,
) -> Result<Frozen, Error> {
    let parent = running.facts();
    if parent.writable {
        return Err(Error::ForkWritable {
            name: args.name.clone(),
            image: parent.image.clone(),
        });
    }
    let program = locate::Places::from_env().program(VMM)?;
    let files = place.freeze()?;
    let (manifest, memory) = (files.manifest(), files.memory());
    let taken = running.freeze(&Freeze {
        snapshot_type: Extent::Diff,
        snapshot_path: &manifest,
        mem_file_path: &memory,
        live: true,
        local: true,
    })?;
    let freeze_ms = ms(began, Instant::now());
    let (read, _) = Manifest::read(&manifest).map_err(Failure::from)?;
    let store = parent.store.clone();
    let mut seed = Seed::new(program, manifest, &read, store, args.restore_timeout)?;
    seed.facts = Facts {
        parent: Some(args.name.clone()),
        snapshot: parent.base(),
        last_snapshot: None,
        ..parent.clone()
    };
    Ok(Frozen {
        pause_ms: taken.pause_us as f64 / 1000.0,
        freeze_ms,
        seed,
        parent_pid: running.pid(),
        _files: files,
    })
}

/// Lets all children grow, each of which does its work as soon as it can.
/// Signals end the work.
fn all_at_once(
    seed: &Seed,
    claimed: Vec<(Name, Held)>,
    chorus: &Chorus,
    signals: &Signals,
    began: Instant,
) -> Result<Vec<Child>, Error> {
    // At its end when each of them is done.
    let (done, work) = io::pipe().map_err(Error::host("a pipe cannot be made"))?;
    std::thread::scope(|scope| {
        let children: Vec<_> = (1..)
            .zip(claimed)
            .map(|(number, (name, held))| {
                let work: io::Result<PipeWriter> = work.try_clone();
                scope.spawn(move || {
                    let _work = work;
                    child(seed, name, number, held, chorus, began)
                })
            })
            .collect();
        drop(work);
        pass_on(signals, chorus, &done).map_err(Error::host("waiting failed"))?;
        Ok(children
            .into_iter()
            .map(|child| {
                child
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect())
    })
}

/// Passes signals on until `done` is at its end.
fn pass_on(signals: &Signals, chorus: &Chorus, done: &impl AsFd) -> io::Result<()> {
    let mut insist: Option<Instant> = None;
    loop {
        let mut fds = [done.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let came = wait::until(&mut fds, insist)?;
        let [done, signalled] = fds.map(|fd| wait::is_ready(&fd));
        if came && done {
            return Ok(());
        }
        if came && signalled {
            if let Some(Arrived::End(signal)) = signals.next()? {
                chorus.end(signal);
                insist = Instant::now().checked_add(GRACE);
            }
        } else if let Some(signal) = chorus.ended() {
            chorus.end(signal);
            insist = Instant::now().checked_add(Duration::from_secs(60));
        }
    }
}

/// One child from its start to the end of its command.
fn child(
    seed: &Seed,
    name: Name,
    number: usize,
    held: Held,
    chorus: &Chorus,
    began: Instant,
) -> Child {
    let mut child = Child {
        name,
        number,
        pid: None,
        start_ms: None,
        ready_ms: None,
        first_output_ms: None,
        exit_code: None,
        memory: None,
        error: None,
    };
    let fail = |child: &mut Child, error: Error| {
        eprintln!("coppice: {}: {error}", child.name);
        child.error = Some(error.to_string());
    };
    match seed.grow(&child.name, &held) {
        Ok(grown) => {
            child.pid = Some(grown.vmm.pid);
            child.start_ms = Some(ms(began, grown.began));
            child.ready_ms = Some(ms(began, grown.ready));
        }
        Err(error) => {
            fail(&mut child, error);
            give_up(held);
            return child;
        }
    }
    // From here on it is like any other machine.
    drop(held);
    if chorus.argv.is_empty() {
        return child;
    }
    match chorus.sing(&child.name, number) {
        Ok(sung) => {
            child.exit_code = Some(sung.code);
            child.first_output_ms = sung.first_output.map(|at| ms(began, at));
        }
        Err(error) => fail(&mut child, error),
    }
    child
}

/// 125 if a child did not come up; else the first exit code that is not 0.
fn code(children: &[Child]) -> u8 {
    if children.iter().any(|child| child.error.is_some()) {
        return Error::FAILURE;
    }
    let codes = children.iter().filter_map(|child| child.exit_code);
    codes.into_iter().find(|code| *code != 0).unwrap_or(0)
}

fn people(report: &Report) -> String {
    let mut lines =
        vec![["NAME", "READY", "FIRST OUTPUT", "EXIT CODE", "RSS", "PSS"].map(String::from)];
    let time = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0} ms"));
    let kib = |kib: u64| text::size(kib * 1024);
    for child in &report.children {
        let of = |value: fn(&Memory) -> u64| {
            child
                .memory
                .as_ref()
                .map_or_else(|| "-".into(), |memory| kib(value(memory)))
        };
        lines.push([
            child.name.to_string(),
            time(child.ready_ms),
            time(child.first_output_ms),
            child
                .exit_code
                .map_or_else(|| "-".into(), |code| code.to_string()),
            of(|memory| memory.rss_kib),
            of(|memory| memory.pss_kib),
        ]);
    }
    let Memory { rss_kib, pss_kib } = report.memory;
    format!(
        "{}\n{} was paused for {:.1} ms, and frozen after {:.0} ms. The times above count from \
         the same moment.\nThe forks see {} of memory and take {}; {} are shared.\n",
        text::table(&lines),
        report.parent,
        report.pause_ms,
        report.freeze_ms,
        kib(rss_kib),
        kib(pss_kib),
        kib(rss_kib.saturating_sub(pss_kib)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(number: usize, exit_code: Option<u8>, error: Option<&str>) -> Child {
        Child {
            name: format!("a-{number}").parse().expect("a name"),
            number,
            pid: Some(7),
            start_ms: Some(1.0),
            ready_ms: Some(12.4),
            first_output_ms: None,
            exit_code,
            memory: Some(Memory {
                rss_kib: 4096,
                pss_kib: 1024,
            }),
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn one_that_fails_is_enough() {
        assert_eq!(code(&[child(1, None, None), child(2, Some(0), None)]), 0);
        let failed = [
            child(1, Some(0), None),
            child(2, Some(3), None),
            child(3, Some(1), None),
        ];
        assert_eq!(code(&failed), 3);
        assert_eq!(
            code(&[child(1, Some(3), None), child(2, None, Some("no"))]),
            125
        );
    }

    #[test]
    fn people_see_what_is_shared() {
        let children = vec![child(1, Some(0), None), child(2, None, None)];
        let report = Report {
            parent: "a".parse().expect("a name"),
            pause_ms: 1.25,
            freeze_ms: 10.0,
            memory: children.iter().filter_map(|child| child.memory).sum(),
            parent_memory: None,
            children,
        };
        let text = people(&report);
        for part in [
            "a-1   12 ms  -",
            "paused for 1.2 ms",
            "8.00 MiB",
            "6.00 MiB are shared",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
