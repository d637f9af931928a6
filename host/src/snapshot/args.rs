//! What can be typed after `coppice snapshot`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use coppice_snapshot::store::Tag;

use crate::named::Name;
use crate::values::duration;

/// `coppice snapshot`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct SnapshotArgs {
    /// The store [default: $COPPICE_STORE, or coppice/snapshots in the user's data directory]
    #[arg(long, value_name = "DIR", global = true)]
    pub store: Option<PathBuf>,

    /// Write the answer as one line of JSON
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Freeze a machine that runs, and let it run on
    #[command(after_long_help = CREATE_HELP)]
    Create(CreateArgs),
    /// List the snapshots in the store, or its layers
    #[command(after_long_help = LS_HELP)]
    Ls(LsArgs),
    /// Show all about a snapshot
    #[command(after_long_help = INSPECT_HELP)]
    Inspect(InspectArgs),
    /// Put a snapshot that lies in files into the store
    #[command(after_long_help = PUT_HELP)]
    Put(PutArgs),
    /// Give a snapshot a tag, or take tags away
    #[command(after_long_help = TAG_HELP)]
    Tag(TagArgs),
    /// Check the content of snapshots, or of all layers in the store
    #[command(after_long_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Make a snapshot that has one layer instead of many
    #[command(after_long_help = FLATTEN_HELP)]
    Flatten(FlattenArgs),
    /// Write snapshots to one file, to carry them to another host
    #[command(after_long_help = PACK_HELP)]
    Pack(PackArgs),
    /// Put the snapshots of a pack into the store
    #[command(after_long_help = UNPACK_HELP)]
    Unpack(UnpackArgs),
    /// Remove snapshots, and the layers that only they need
    #[command(after_long_help = RM_HELP)]
    Rm(RmArgs),
    /// Remove what no snapshot needs
    #[command(after_long_help = GC_HELP)]
    Gc(GcArgs),
}

/// `coppice snapshot create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The machine, started by `coppice start`, `restore` or `fork`
    pub name: Name,

    /// Give the snapshot this tag
    #[arg(long)]
    pub tag: Option<Tag>,

    /// Write all of the memory, also what an earlier snapshot has
    #[arg(long)]
    pub full: bool,
}

/// `coppice snapshot ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// List the names of layers, one a line
    #[arg(long)]
    pub layers: bool,
}

/// `coppice snapshot inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Tag, beginning of an id, or path of a manifest (with a slash)
    pub snapshot: String,
}

/// `coppice snapshot put`.
#[derive(Debug, Args)]
pub struct PutArgs {
    /// The snapshot's manifest, beside which its layers are
    pub manifest: PathBuf,

    /// Give it this tag, too
    #[arg(long)]
    pub tag: Option<Tag>,

    /// Remove the files once the snapshot is in the store
    #[arg(long = "move")]
    pub take: bool,
}

/// `coppice snapshot tag`.
#[derive(Debug, Args)]
pub struct TagArgs {
    /// Tag or beginning of an id
    #[arg(required_unless_present = "delete", requires = "tag")]
    pub snapshot: Option<String>,

    /// The new tag; if another snapshot has it, it moves
    pub tag: Option<Tag>,

    /// Take this tag away from whatever has it
    #[arg(
        long,
        short,
        value_name = "TAG",
        conflicts_with_all = ["snapshot", "tag"]
    )]
    pub delete: Vec<Tag>,
}

/// `coppice snapshot verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Tags, beginnings of ids, or paths of manifests [default: all layers in the store]
    #[arg(value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,

    /// Only layers that were not verified within this time
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "snapshots")]
    pub older_than: Option<Duration>,
}

/// `coppice snapshot flatten`.
#[derive(Debug, Args)]
pub struct FlattenArgs {
    /// Tag or beginning of an id
    pub snapshot: String,

    /// Give the new snapshot this tag
    #[arg(long)]
    pub tag: Option<Tag>,
}

/// `coppice snapshot pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// Tags, beginnings of ids, or paths of manifests
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,

    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,

    /// Leave out the layers named in FILE, one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub without: Option<PathBuf>,

    /// How hard zstd works
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub level: i32,
}

/// `coppice snapshot unpack`.
#[derive(Debug, Args)]
pub struct UnpackArgs {
    /// The pack; - is standard input
    pub file: PathBuf,
}

/// `coppice snapshot rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Tags or beginnings of ids
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// `coppice snapshot gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// Only say what would be removed
    #[arg(long, short = 'n')]
    pub dry_run: bool,
}

const HELP: &str = "\
Snapshots are named by a tag or by the beginning of their id (four digits at
least). They are immutable, and share the layers of memory and disks that are the
same in several of them.

Exit code: 0; 1 if `verify` found damage; 125 if something failed, with the reason
on standard error.";

const CREATE_HELP: &str = "\
Examples:
  coppice snapshot create web --tag base
  coppice snapshot create web --json | jq -r .id

Writes the snapshot's id, the size of what is new in it, and for how long the
machine was paused. `coppice restore` makes machines of it. What an earlier
snapshot, or the one that the machine was restored from, has in this store is not
written again.";

const LS_HELP: &str = "\
Examples:
  coppice snapshot ls
  coppice snapshot ls --json | jq -r '.[] | select(.tags == []) | .id'
  coppice snapshot ls --layers

DATA is what the snapshot's layers hold; OWN is what removing it would free.";

const INSPECT_HELP: &str = "\
Examples:
  coppice snapshot inspect base
  coppice snapshot inspect ./vm.snap
  coppice snapshot inspect base --json | jq .machine";

const PUT_HELP: &str = "\
Examples:
  coppice snapshot put ./vm.snap --tag base
  coppice snapshot put --move /tmp/vm.snap

Writes the snapshot's id. The content of its layers is checked. Layers that the
store has are not written again; on one file system the others are not copied.";

const TAG_HELP: &str = "\
Examples:
  coppice snapshot tag 3f2a91 base
  coppice snapshot tag -d base";

const VERIFY_HELP: &str = "\
Examples:
  coppice snapshot verify base
  coppice snapshot verify
  coppice snapshot verify --older-than 168h

Reads all content and compares it with the layers' names. What was found is
remembered; `inspect` and `ls --layers --json` show it.

Exit code: 0 if all is whole, 1 if something is damaged or missing.";

const FLATTEN_HELP: &str = "\
Examples:
  coppice snapshot flatten base --tag base-flat
  coppice snapshot rm base

Writes the new snapshot's id. The old one stays as it is, until it is removed.";

const PACK_HELP: &str = "\
Examples:
  coppice snapshot pack base -o base.pack
  coppice snapshot pack base | ssh host coppice snapshot unpack -
  ssh host coppice snapshot ls --layers > theirs
  coppice snapshot pack base --without theirs | ssh host coppice snapshot unpack -

The file is one zstd stream. Layers' content is checked on the way.";

const UNPACK_HELP: &str = "\
Examples:
  coppice snapshot unpack base.pack
  ssh host coppice snapshot pack base | coppice snapshot unpack -

Writes the snapshots' ids. Only layers that the store lacks are written, and each
is checked. Tags come along, unless another snapshot here has them.";

const RM_HELP: &str = "\
Examples:
  coppice snapshot rm base
  coppice snapshot rm 3f2a91 77d0

Its tags go, too. Layers that a machine runs on stay until it has ended and
`coppice snapshot gc` is run.";

const GC_HELP: &str = "\
Examples:
  coppice snapshot gc --dry-run
  coppice snapshot gc

Removes layers that neither a snapshot needs nor a machine runs on, and what was
left half-written by programs that were killed. Waits for those that are at work.";
