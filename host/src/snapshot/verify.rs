//! `coppice snapshot verify`: is everything what it was?

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use coppice_snapshot::{LayerName, Store};
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

/// Verifies snapshots, or all layers.
pub fn verify(store: &Store, args: &VerifyArgs, json: bool) -> Result<Answer, Failure> {
    let mut report = Report::default();
    let mut in_store: BTreeSet<LayerName> = BTreeSet::new();
    for name in &args.snapshots {
        let named = Named::new(store, name)?;
        match (&named, named.read(store)) {
            (_, Err(error)) => report.damaged.push(Damaged {
                name: name.clone(),
                error: error.to_string(),
            }),
            (Named::InStore(_), Ok((_, manifest, _))) => {
                in_store.extend(manifest.layers().map(|layer| layer.name));
            }
            (Named::File(_), Ok((_, manifest, places))) => {
                for layer in manifest.layers() {
                    report.layers += 1;
                    let found = places.find(layer).map_err(|error| error.to_string());
                    let verified = found.and_then(|layer| {
                        let bar = Bar::new("verifying");
                        let total = layer.data_len();
                        let mut done = 0;
                        let verified = layer.verify(&mut |bytes| {
                            done += bytes;
                            bar.report(coppice_snapshot::Progress { done, total });
                        });
                        verified.map_err(|error| error.to_string())
                    });
                    report.damaged.extend(verified.err().map(|error| Damaged {
                        name: layer.name.to_string(),
                        error,
                    }));
                }
            }
        }
    }
    if args.snapshots.is_empty() {
        for (id, manifest) in store.list()? {
            report.damaged.extend(manifest.err().map(|error| Damaged {
                name: id.to_string(),
                error: error.to_string(),
            }));
        }
        in_store.extend(store.unverified_since(since(args))?);
    }
    let layers: Vec<LayerName> = in_store.into_iter().collect();
    report.layers += layers.len();
    let bar = Bar::new("verifying");
    let damaged = store.verify(&layers, &mut |progress| bar.report(progress))?;
    drop(bar);
    report
        .damaged
        .extend(damaged.iter().map(|(name, error)| Damaged {
            name: name.to_string(),
            error: error.to_string(),
        }));
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
