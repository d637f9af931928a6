//! `coppice snapshot`: making snapshots, looking after snapshots and the store that they are in.

mod args;
mod bar;
mod change;
mod create;
mod error;
mod inspect;
mod list;
mod pack;
mod place;
pub mod text;
mod verify;

use std::process::ExitCode;

use coppice_snapshot::Store;

pub use args::SnapshotArgs;
pub use error::Failure;
pub use place::{Named, store_dir};

use args::SnapshotCommand;

/// What a subcommand says on standard output, and how it ends.
struct Answer {
    text: String,
    code: u8,
}

impl Answer {
    fn ok(text: String) -> Self {
        Self { text, code: 0 }
    }

    /// A line of JSON, or else the text for people.
    fn new(json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> Self {
        Self::ok(match json {
            true => text::json(value),
            false => text(),
        })
    }
}

/// Does what one of the subcommands is for.
pub fn snapshot(args: SnapshotArgs) -> ExitCode {
    match attempt(args) {
        Ok(Answer { text, code }) => match crate::print(text.as_bytes()) {
            ExitCode::SUCCESS => code.into(),
            failure => failure,
        },
        Err(error) => {
            eprintln!("coppice: {error}");
            crate::error::Error::FAILURE.into()
        }
    }
}

fn attempt(args: SnapshotArgs) -> Result<Answer, Failure> {
    let SnapshotArgs {
        store,
        json,
        command,
    } = args;
    let store = Store::open(&store_dir(store.as_deref()))?;
    match command {
        SnapshotCommand::Create(args) => create::create(&store, &args, json),
        SnapshotCommand::Ls(args) => list::list(&store, &args, json),
        SnapshotCommand::Inspect(args) => inspect::inspect(&store, &args, json),
        SnapshotCommand::Put(args) => change::put(&store, &args, json),
        SnapshotCommand::Tag(args) => change::tag(&store, &args, json),
        SnapshotCommand::Verify(args) => verify::verify(&store, &args, json),
        SnapshotCommand::Flatten(args) => change::flatten(&store, &args, json),
        SnapshotCommand::Pack(args) => pack::pack(&store, &args, json),
        SnapshotCommand::Unpack(args) => pack::unpack(&store, &args, json),
        SnapshotCommand::Rm(args) => change::remove(&store, &args, json),
        SnapshotCommand::Gc(args) => change::collect(&store, &args, json),
    }
}
