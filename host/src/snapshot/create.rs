//! `coppice snapshot create`: freezing a machine that runs.

use coppice_snapshot::store::Take;
use coppice_snapshot::{BLOCK_SIZE, Manifest, Places, SnapshotId, Store};
use serde::Serialize;

use super::args::CreateArgs;
use super::bar::Bar;
use super::error::Failure;
use super::{Answer, text};
use crate::api::{Extent, Freeze};
use crate::named::{Place, Running};

#[derive(Debug, Serialize)]
struct Created {
    id: SnapshotId,
    tag: Option<String>,
    /// Bytes of memory that are in the new layer.
    bytes: u64,
    /// For how long the machine did not run, in milliseconds.
    pause_ms: f64,
    /// From the request to the VMM until all was written, in milliseconds.
    write_ms: f64,
}

/// Freezes a machine into the store.
pub fn create(store: &Store, args: &CreateArgs, json: bool) -> Result<Answer, Failure> {
    let mut running = Running::hold(&Place::open()?, &args.name)?;
    // Layers that are made here enter the store without being copied.
    let staging = store.staging()?;
    let path = staging.dir().join("manifest");
    let bar = Bar::spinner("freezing");
    let frozen = running.freeze(&Freeze {
        snapshot_type: if args.full {
            Extent::Full
        } else {
            Extent::Diff
        },
        snapshot_path: &path,
        mem_file_path: &staging.dir().join("memory"),
        live: true,
        local: false,
    })?;
    drop(bar);
    let (mut manifest, _) = Manifest::read(&path)?;
    // What the VMM knows as parent may have been a fork's, which nobody keeps.
    manifest.info.parent = running.facts().base();
    let places = Places {
        store: Some(
            running
                .facts()
                .store
                .clone()
                .unwrap_or_else(|| store.dir().to_owned()),
        ),
        ..Places::beside(&path)
    };
    let bar = Bar::new("putting");
    // Layers below may serve other machines, too.
    let id = store.put(&manifest, &places, Take::Keep, &mut |progress| {
        bar.report(progress)
    })?;
    drop(bar);
    if let Some(tag) = &args.tag {
        store.tag(&id, tag)?;
    }
    running.is_kept_in(store.dir(), id)?;
    let created = Created {
        id,
        tag: args.tag.as_ref().map(ToString::to_string),
        bytes: frozen.data_blocks * BLOCK_SIZE,
        pause_ms: frozen.pause_us as f64 / 1000.0,
        write_ms: frozen.total_us as f64 / 1000.0,
    };
    Ok(Answer::new(json, &created, || {
        let size = text::size(created.bytes);
        format!(
            "{id}\n{size} are new; {} was paused for {:.1} ms\n",
            args.name, created.pause_ms
        )
    }))
}
