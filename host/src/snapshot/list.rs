//! `coppice snapshot ls`: what is in the store.

use std::collections::BTreeMap;

use coppice_snapshot::store::LayerUse;
use coppice_snapshot::{BLOCK_SIZE, LayerName, Manifest, SnapshotId, Store, StoreError};
use serde::Serialize;

use super::args::LsArgs;
use super::error::Failure;
use super::{Answer, text};

/// Lists the snapshots, or the layers.
pub fn list(store: &Store, args: &LsArgs, json: bool) -> Result<Answer, Failure> {
    match args.layers {
        true => layers(store, json),
        false => snapshots(store, json),
    }
}

/// A snapshot in the list.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    tags: Vec<String>,
    /// Why nothing more is known.
    error: Option<String>,
    #[serde(flatten)]
    facts: Option<Facts>,
}

#[derive(Debug, Serialize)]
struct Facts {
    created_ms: u64,
    version: String,
    parent: Option<SnapshotId>,
    /// Snapshots in the store whose parent this is.
    children: usize,
    memory_bytes: u64,
    disks: usize,
    layers: usize,
    /// Bytes on disk of all of its layers, and of those that only it needs.
    data_bytes: u64,
    own_bytes: u64,
}

fn snapshots(store: &Store, json: bool) -> Result<Answer, Failure> {
    let all = store.list()?;
    let mut tags: BTreeMap<SnapshotId, Vec<String>> = BTreeMap::new();
    for (tag, id) in store.tags()? {
        tags.entry(id).or_default().push(tag.to_string());
    }
    // Sizes are unknown while a manifest is unreadable; the list shows which.
    let layers = match store.layers() {
        Err(StoreError::Unreadable(_)) => BTreeMap::new(),
        layers => layers?,
    };
    let parents: Vec<SnapshotId> = all
        .values()
        .filter_map(|manifest| manifest.as_ref().ok()?.info.parent)
        .collect();
    let mut rows: Vec<(SnapshotId, Row)> = Vec::new();
    for (id, manifest) in &all {
        let children = parents.iter().filter(|parent| *parent == id).count();
        let facts = |manifest: &Manifest| facts(manifest, children, &layers);
        let row = Row {
            id: id.to_string(),
            tags: tags.remove(id).unwrap_or_default(),
            error: manifest.as_ref().err().map(ToString::to_string),
            facts: manifest.as_ref().ok().map(facts),
        };
        rows.push((*id, row));
    }
    rows.sort_by_key(|(_, row)| row.facts.as_ref().map_or(0, |facts| facts.created_ms));
    let shown: Vec<&Row> = rows.iter().map(|(_, row)| row).collect();
    Ok(Answer::new(json, &shown, || table(&rows)))
}

fn facts(manifest: &Manifest, children: usize, layers: &BTreeMap<LayerName, LayerUse>) -> Facts {
    let its: BTreeMap<LayerName, &LayerUse> = manifest
        .layers()
        .filter_map(|layer| Some((layer.name, layers.get(&layer.name)?)))
        .collect();
    let own = its.values().filter(|layer| layer.snapshots.len() == 1);
    Facts {
        created_ms: manifest.info.created_ms,
        version: manifest.info.version.clone(),
        parent: manifest.info.parent,
        children,
        memory_bytes: manifest.memory.blocks * BLOCK_SIZE,
        disks: manifest.disks.len(),
        layers: manifest.layers().count(),
        data_bytes: its.values().map(|layer| layer.bytes).sum(),
        own_bytes: own.map(|layer| layer.bytes).sum(),
    }
}

/// For people. Nothing at all if there are no snapshots.
fn table(rows: &[(SnapshotId, Row)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let titles = [
        "ID", "TAGS", "AGE", "MEMORY", "DISKS", "LAYERS", "DATA", "OWN",
    ];
    let mut lines = vec![titles.map(String::from)];
    for (id, row) in rows {
        let of = |text: &dyn Fn(&Facts) -> String| match &row.facts {
            Some(facts) => text(facts),
            None => "?".into(),
        };
        lines.push([
            text::short(id),
            row.tags.join(","),
            of(&|facts| text::ago(facts.created_ms)),
            of(&|facts| text::size(facts.memory_bytes)),
            of(&|facts| facts.disks.to_string()),
            of(&|facts| facts.layers.to_string()),
            of(&|facts| text::size(facts.data_bytes)),
            of(&|facts| text::size(facts.own_bytes)),
        ]);
    }
    let mut text = text::table(&lines);
    for error in rows.iter().filter_map(|(_, row)| row.error.as_ref()) {
        text.push_str(error);
        text.push('\n');
    }
    text
}

/// A layer in the list.
#[derive(Debug, Serialize)]
struct LayerRow {
    name: String,
    bytes: u64,
    /// How many snapshots need it.
    snapshots: usize,
    /// When it was last verified, and whether it was whole.
    verified_ms: Option<u64>,
    whole: Option<bool>,
}

fn layers(store: &Store, json: bool) -> Result<Answer, Failure> {
    let verified = store.verified()?;
    let rows: Vec<LayerRow> = store
        .layers()?
        .into_iter()
        .map(|(name, layer)| LayerRow {
            bytes: layer.bytes,
            snapshots: layer.snapshots.len(),
            verified_ms: verified.get(&name).map(|found| found.at_ms),
            whole: verified.get(&name).map(|found| found.whole),
            name: name.to_string(),
        })
        .collect();
    Ok(Answer::new(json, &rows, || {
        let names = rows.iter().map(|row| row.name.clone() + "\n");
        names.collect()
    }))
}
