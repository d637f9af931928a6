//! `coppice snapshot inspect`: all about one snapshot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use coppice_snapshot::store::Verified;
use coppice_snapshot::{BLOCK_SIZE, LayerName, LayerRef, Places, SnapshotId, StackRef, Store};
use serde::Serialize;
use serde_json::value::RawValue;

use super::args::InspectArgs;
use super::error::Failure;
use super::place::Named;
use super::{Answer, text};

#[derive(Debug, Serialize)]
struct Shown {
    id: SnapshotId,
    tags: Vec<String>,
    created_ms: u64,
    version: String,
    parent: Option<SnapshotId>,
    memory: StackShown,
    disks: Vec<DiskShown>,
    state_bytes: usize,
    cpu: Box<RawValue>,
    machine: Box<RawValue>,
}

#[derive(Debug, Serialize)]
struct StackShown {
    bytes: u64,
    /// Topmost first.
    layers: Vec<LayerShown>,
}

#[derive(Debug, Serialize)]
struct DiskShown {
    drive_id: String,
    #[serde(flatten)]
    stack: StackShown,
}

#[derive(Debug, Serialize)]
struct LayerShown {
    name: String,
    /// Where it was found.
    path: Option<PathBuf>,
    /// Why it was not.
    error: Option<String>,
    held_bytes: Option<u64>,
    data_bytes: Option<u64>,
    ranges: Option<usize>,
    verified_ms: Option<u64>,
    whole: Option<bool>,
}

/// Shows a snapshot.
pub fn inspect(store: &Store, args: &InspectArgs, json: bool) -> Result<Answer, Failure> {
    let _share = store.share()?;
    let named = Named::new(store, &args.snapshot)?;
    let (id, manifest, places) = named.read(store)?;
    let verified = store.verified()?;
    let tags = store.tags()?.into_iter().filter(|(_, of)| *of == id);
    let stack = |stack: &StackRef| StackShown {
        bytes: stack.blocks * BLOCK_SIZE,
        layers: stack
            .layers
            .iter()
            .map(|layer| show(layer, &places, &verified))
            .collect(),
    };
    let shown = Shown {
        id,
        tags: tags.map(|(tag, _)| tag.to_string()).collect(),
        created_ms: manifest.info.created_ms,
        version: manifest.info.version,
        parent: manifest.info.parent,
        memory: stack(&manifest.memory),
        disks: manifest
            .disks
            .iter()
            .map(|disk| DiskShown {
                drive_id: disk.drive_id.clone(),
                stack: stack(&disk.stack),
            })
            .collect(),
        state_bytes: manifest.state.len(),
        cpu: manifest.info.cpu,
        machine: manifest.info.machine,
    };
    Ok(Answer::new(json, &shown, || people(&shown)))
}

fn show(
    reference: &LayerRef,
    places: &Places,
    verified: &BTreeMap<LayerName, Verified>,
) -> LayerShown {
    let found = places.find(reference);
    let layer = found.as_ref().ok();
    let verified = verified.get(&reference.name);
    LayerShown {
        name: reference.name.to_string(),
        path: layer.map(|layer| layer.path().to_owned()),
        error: found.as_ref().err().map(ToString::to_string),
        held_bytes: layer.map(|layer| layer.held().blocks() * BLOCK_SIZE),
        data_bytes: layer.map(coppice_snapshot::Layer::data_len),
        ranges: layer.map(|layer| layer.held().ranges()),
        verified_ms: verified.map(|found| found.at_ms),
        whole: verified.map(|found| found.whole),
    }
}

fn people(shown: &Shown) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<10}{value}");
    };
    row("id", &shown.id.to_string());
    if !shown.tags.is_empty() {
        row("tags", &shown.tags.join(", "));
    }
    row("made", &format!("{} ago", text::ago(shown.created_ms)));
    row("by", &format!("coppice {}", shown.version));
    if let Some(parent) = &shown.parent {
        row("parent", &parent.to_string());
    }
    row("state", &text::size(shown.state_bytes as u64));
    row("cpu", shown.cpu.get());
    row("machine", shown.machine.get());
    stack(&mut out, "memory", &shown.memory);
    for disk in &shown.disks {
        stack(&mut out, &format!("disk {:?}", disk.drive_id), &disk.stack);
    }
    out
}

fn stack(out: &mut String, what: &str, shown: &StackShown) {
    let _ = writeln!(
        out,
        "\n{what} of {}, topmost layer first:",
        text::size(shown.bytes)
    );
    for layer in &shown.layers {
        let _ = writeln!(out, "  {}", layer.name);
        if let Some(error) = &layer.error {
            let _ = writeln!(out, "    {error}");
        }
        if let (Some(data), Some(held), Some(ranges)) =
            (layer.data_bytes, layer.held_bytes, layer.ranges)
        {
            let (data, held) = (text::size(data), text::size(held));
            let _ = writeln!(out, "    {data} of data, holds {held} in {ranges} ranges");
        }
        if let (Some(at), Some(whole)) = (layer.verified_ms, layer.whole) {
            let found = if whole { "whole" } else { "damaged" };
            let _ = writeln!(out, "    found {found} {} ago", text::ago(at));
        }
    }
}
