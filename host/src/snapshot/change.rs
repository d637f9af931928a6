//! The subcommands that change what is in the store.

use coppice_snapshot::store::{Collected, Take};
use coppice_snapshot::{Manifest, Places, SnapshotId, Store};
use serde::Serialize;

use super::args::{FlattenArgs, GcArgs, PutArgs, RmArgs, TagArgs};
use super::bar::Bar;
use super::error::Failure;
use super::{Answer, text};

/// A snapshot that is in the store now.
#[derive(Debug, Serialize)]
struct Made {
    id: SnapshotId,
    tag: Option<String>,
}

/// Puts a snapshot that lies in files into the store.
pub fn put(store: &Store, args: &PutArgs, json: bool) -> Result<Answer, Failure> {
    let (manifest, _) = Manifest::read(&args.manifest)?;
    let mut places = Places::beside(&args.manifest);
    places.store.get_or_insert_with(|| store.dir().to_owned());
    let take = match args.take {
        true => Take::Move,
        false => Take::Keep,
    };
    let bar = Bar::new("putting");
    let id = store.put(&manifest, &places, take, &mut |progress| {
        bar.report(progress)
    })?;
    if let Some(tag) = &args.tag {
        store.tag(&id, tag)?;
    }
    if args.take {
        let removed = std::fs::remove_file(&args.manifest);
        removed.map_err(Failure::io(&args.manifest, "removed"))?;
    }
    Ok(made(json, id, args.tag.as_ref()))
}

/// Gives a snapshot a tag, or takes tags away.
pub fn tag(store: &Store, args: &TagArgs, json: bool) -> Result<Answer, Failure> {
    for tag in &args.delete {
        store.untag(tag)?;
    }
    if let (Some(name), Some(tag)) = (&args.snapshot, &args.tag) {
        let id = store.resolve(name)?;
        store.tag(&id, tag)?;
    }
    let tags: std::collections::BTreeMap<String, SnapshotId> = store
        .tags()?
        .into_iter()
        .map(|(tag, id)| (tag.to_string(), id))
        .collect();
    Ok(Answer::new(json, &tags, String::new))
}

/// Makes a snapshot of one layer.
pub fn flatten(store: &Store, args: &FlattenArgs, json: bool) -> Result<Answer, Failure> {
    let id = store.resolve(&args.snapshot)?;
    let bar = Bar::new("flattening");
    let id = store.flatten(&id, &mut |progress| bar.report(progress))?;
    if let Some(tag) = &args.tag {
        store.tag(&id, tag)?;
    }
    Ok(made(json, id, args.tag.as_ref()))
}

fn made(json: bool, id: SnapshotId, tag: Option<&coppice_snapshot::store::Tag>) -> Answer {
    let made = Made {
        id,
        tag: tag.map(ToString::to_string),
    };
    Answer::new(json, &made, || format!("{id}\n"))
}

/// What was removed.
#[derive(Debug, Default, Serialize)]
struct Removed {
    snapshots: Vec<SnapshotId>,
    layers: Vec<String>,
    /// Layers that machines run on.
    in_use: Vec<String>,
    /// Bytes that are free now.
    bytes: u64,
}

impl Removed {
    fn add(&mut self, collected: &Collected) {
        self.bytes += collected.bytes();
        let layers = collected.layers.iter().map(|(name, _)| name.to_string());
        self.layers.extend(layers);
        let in_use = collected.in_use.iter().map(ToString::to_string);
        self.in_use.extend(in_use);
    }

    fn answer(&self, json: bool, verb: &str) -> Answer {
        Answer::new(json, self, || {
            let mut text = format!("{verb} {}", text::count(self.layers.len(), "layer"));
            text.push_str(&format!(", {}\n", text::size(self.bytes)));
            if !self.in_use.is_empty() {
                let layers = text::count(self.in_use.len(), "layer");
                text.push_str(&format!("kept {layers} that machines run on\n"));
            }
            text
        })
    }
}

/// Removes snapshots.
pub fn remove(store: &Store, args: &RmArgs, json: bool) -> Result<Answer, Failure> {
    // All are known before one is removed.
    let mut ids = Vec::new();
    for name in &args.snapshots {
        let id = store.resolve(name)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut removed = Removed::default();
    for id in ids {
        removed.add(&store.remove(&id)?);
        removed.snapshots.push(id);
    }
    Ok(removed.answer(json, "removed"))
}

/// Removes what no snapshot needs.
pub fn collect(store: &Store, args: &GcArgs, json: bool) -> Result<Answer, Failure> {
    let mut removed = Removed::default();
    if args.dry_run {
        let layers = store.unneeded()?;
        removed.add(&Collected {
            layers,
            ..Collected::default()
        });
        return Ok(removed.answer(json, "would remove"));
    }
    removed.add(&store.collect()?);
    Ok(removed.answer(json, "removed"))
}
