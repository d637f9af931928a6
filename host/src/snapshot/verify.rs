//! `coppice snapshot verify`: is everything what it was?

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use coppice_snapshot::{LayerName, Manifest, Places, Progress, Store};
use serde::Serialize;

use super::args::VerifyArgs;
use super::bar::Bar;
use super::error::Failure;
use super::place::Named;
use super::{Answer, text};

/// The exit code if something is damaged.
const DAMAGED: u8 = 1;

#[derive(Debug, Default, Serialize)]
struct Report {
    /// Layers that were read.
    layers: usize,
    damaged: Vec<Damaged>,
}

#[derive(Debug, Serialize)]
struct Damaged {
    /// The layer, or the snapshot whose layers are not known.
    name: String,
    error: String,
}

impl Report {
    fn add(&mut self, name: impl ToString, error: impl ToString) {
        self.damaged.push(Damaged {
            name: name.to_string(),
            error: error.to_string(),
        });
    }

    /// Verifies the layers of a snapshot that lies in files of its own.
    fn verify_files(&mut self, manifest: &Manifest, places: &Places) {
        for reference in manifest.layers() {
            self.layers += 1;
            let bar = Bar::new("verifying");
            match places.find(reference) {
                Err(error) => self.add(reference.name, error),
                Ok(layer) => {
                    let (mut done, total) = (0, layer.data_len());
                    let verified = layer.verify(&mut |bytes| {
                        done += bytes;
                        bar.report(Progress { done, total });
                    });
                    if let Err(error) = verified {
                        self.add(reference.name, error);
                    }
                }
            }
        }
    }
}

/// Verifies snapshots, or all layers.
pub fn verify(store: &Store, args: &VerifyArgs, json: bool) -> Result<Answer, Failure> {
    let mut report = Report::default();
    let mut in_store: BTreeSet<LayerName> = BTreeSet::new();
    for name in &args.snapshots {
        let named = Named::new(store, name)?;
        match (named.read(store), named) {
            (Err(error), _) => report.add(name, error),
            (Ok((_, manifest, _)), Named::InStore(_)) => {
                in_store.extend(manifest.layers().map(|layer| layer.name));
            }
            (Ok((_, manifest, places)), Named::File(_)) => report.verify_files(&manifest, &places),
        }
    }
    if args.snapshots.is_empty() {
        for (id, manifest) in store.list()? {
            if let Err(error) = manifest {
                report.add(id, error);
            }
        }
        in_store.extend(store.unverified_since(since(args))?);
    }
    let layers: Vec<LayerName> = in_store.into_iter().collect();
    report.layers += layers.len();
    let bar = Bar::new("verifying");
    for (name, error) in store.verify(&layers, &mut |progress| bar.report(progress))? {
        report.add(name, error);
    }
    drop(bar);
    let mut answer = Answer::new(json, &report, || people(&report));
    if !report.damaged.is_empty() {
        answer.code = DAMAGED;
    }
    Ok(answer)
}

/// The time before which layers are verified again, in milliseconds since 1970.
fn since(args: &VerifyArgs) -> u64 {
    let Some(age) = args.older_than else {
        return u64::MAX;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(age);
    since.as_millis() as u64
}

fn people(report: &Report) -> String {
    if report.damaged.is_empty() {
        return format!("found {} whole\n", text::count(report.layers, "layer"));
    }
    let damaged = report.damaged.iter();
    damaged
        .map(|damaged| damaged.error.clone() + "\n")
        .collect()
}
