//! `coppice snapshot pack` and `unpack`: carrying snapshots between hosts.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use coppice_snapshot::pack::{Packer, Source, Unpacked};
use coppice_snapshot::{Draft, LayerName, SnapshotId, Store};
use serde::Serialize;

use super::Answer;
use super::args::{PackArgs, UnpackArgs};
use super::bar::Bar;
use super::error::Failure;
use super::place::Named;

/// Writes snapshots to one file.
pub fn pack(store: &Store, args: &PackArgs, json: bool) -> Result<Answer, Failure> {
    let to_stdout = args.output == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::Terminal);
    }
    let without = args.without.as_deref().map(names).transpose()?;
    let mut packer = Packer::new(without.unwrap_or_default());
    for name in &args.snapshots {
        packer.add(match Named::new(store, name)? {
            Named::InStore(id) => Source::in_store(store, &id)?,
            Named::File(path) => Source::file(&path)?,
        })?;
    }
    let bar = Bar::new("packing");
    let mut report = |progress| bar.report(progress);
    if to_stdout {
        let path = Path::new("standard output");
        packer.write(io::stdout().lock(), path, args.level, &mut report)?;
        return Ok(Answer::ok(String::new()));
    }
    let written = || Failure::io(&args.output, "written");
    // Something that is no file, like /dev/null or a FIFO, stays what it is.
    if is_special(&args.output) {
        let file = File::options().write(true).open(&args.output);
        packer.write(
            file.map_err(written())?,
            &args.output,
            args.level,
            &mut report,
        )?;
        return Ok(answer(args, json, 0));
    }
    let draft = Draft::beside(&args.output).map_err(written())?;
    packer.write(draft.file(), &args.output, args.level, &mut report)?;
    let bytes = draft.file().metadata().map_err(written())?.len();
    draft.publish().map_err(written())?;
    Ok(answer(args, json, bytes))
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

#[derive(Debug, Serialize)]
struct Packed {
    file: PathBuf,
    bytes: u64,
}

fn answer(args: &PackArgs, json: bool, bytes: u64) -> Answer {
    let packed = Packed {
        file: args.output.clone(),
        bytes,
    };
    Answer::new(json, &packed, String::new)
}

/// The names of layers in a file, one a line.
fn names(path: &Path) -> Result<HashSet<LayerName>, Failure> {
    let text = match path == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => std::fs::read_to_string(path),
    };
    let text = text.map_err(Failure::io(path, "read"))?;
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(n, line)| {
            line.parse().map_err(|error| Failure::List {
                path: path.to_owned(),
                line: n + 1,
                error,
            })
        })
        .collect()
}

#[derive(Debug, Serialize)]
struct Arrived {
    snapshots: Vec<SnapshotId>,
    tags: Vec<String>,
    /// Tags that other snapshots keep.
    tags_taken: Vec<String>,
    layers_written: usize,
    layers_present: usize,
}

/// Puts the snapshots of a pack into the store.
pub fn unpack(store: &Store, args: &UnpackArgs, json: bool) -> Result<Answer, Failure> {
    let bar = Bar::new("unpacking");
    let mut report = |progress| bar.report(progress);
    let unpacked = match args.file == Path::new("-") {
        true => {
            let path = Path::new("standard input");
            coppice_snapshot::pack::unpack(io::stdin().lock(), path, store, &mut report)?
        }
        false => {
            let file = File::open(&args.file).map_err(Failure::io(&args.file, "opened"))?;
            coppice_snapshot::pack::unpack(file, &args.file, store, &mut report)?
        }
    };
    drop(bar);
    for (tag, id) in &unpacked.taken {
        eprintln!(
            "coppice: the tag {tag} stays with {id}; the one that was unpacked does not get it"
        );
    }
    Ok(arrived(&unpacked, json))
}

fn arrived(unpacked: &Unpacked, json: bool) -> Answer {
    let arrived = Arrived {
        snapshots: unpacked.snapshots.clone(),
        tags: unpacked
            .tags
            .iter()
            .map(|(tag, _)| tag.to_string())
            .collect(),
        tags_taken: unpacked
            .taken
            .iter()
            .map(|(tag, _)| tag.to_string())
            .collect(),
        layers_written: unpacked.written.len(),
        layers_present: unpacked.present.len(),
    };
    Answer::new(json, &arrived, || {
        let ids = arrived.snapshots.iter().map(|id| format!("{id}\n"));
        ids.collect()
    })
}
