//! Checking the content of a store's layers, and remembering when it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{StoreError, io_error};
use super::{Alone, Store, write};
use crate::layer::{Layer, LayerError, LayerName};
use crate::progress::Progress;

/// What was found when a layer was last verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Whether it was whole.
    pub whole: bool,
}

impl Store {
    /// Reads all of the content of `layers` and checks it. What was found is
    /// remembered, and given for those that are not whole.
    ///
    /// # Errors
    /// The result cannot be written down.
    pub fn verify(
        &self,
        layers: &[LayerName],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<(LayerName, LayerError)>, StoreError> {
        let mut bad = Vec::new();
        let mut opened = Vec::new();
        for name in layers {
            match Layer::open_named(&self.layer_path(name), name) {
                Ok(layer) => opened.push(layer),
                Err(error) => bad.push((*name, error)),
            }
        }
        let total = opened.iter().map(Layer::data_len).sum();
        let mut progress = Progress::counter(total, progress);
        for layer in opened {
            let verified = layer.verify(&mut progress);
            self.remember(&layer.name(), verified.is_ok())?;
            if let Err(error) = verified {
                bad.push((layer.name(), error));
            }
        }
        for (name, _) in &bad {
            self.remember(name, false)?;
        }
        Ok(bad)
    }

    /// Those of the store's layers that have not been verified since `since_ms`,
    /// the longest unverified first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn unverified_since(&self, since_ms: u64) -> Result<Vec<LayerName>, StoreError> {
        let verified = self.verified()?;
        let mut old: Vec<(u64, LayerName)> = self
            .layer_bytes()?
            .into_keys()
            .map(|name| (verified.get(&name).map_or(0, |found| found.at_ms), name))
            .filter(|(at, _)| *at < since_ms)
            .collect();
        old.sort_unstable();
        Ok(old.into_iter().map(|(_, name)| name).collect())
    }

    /// What was found when each layer was last verified.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn verified(&self) -> Result<BTreeMap<LayerName, Verified>, StoreError> {
        let path = self.dir.join("verified");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_error(&path, "read")(error)),
        };
        // A line that was not written to its end says nothing.
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter_map(parse).collect())
    }

    fn remember(&self, name: &LayerName, whole: bool) -> Result<(), StoreError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ms = now.map_or(0, |now| now.as_millis() as u64);
        let line = line(name, Verified { at_ms, whole });
        let path = self.dir.join("verified");
        // Not while a collection writes the file anew; one write is one line.
        let _share = self.share()?;
        let file = File::options().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(io_error(&path, "written"))
    }

    /// Forgets layers that have gone, and all but the last of each other.
    pub(super) fn forget_verified(&self, _: &Alone) -> Result<(), StoreError> {
        let mut verified = self.verified()?;
        verified.retain(|name, _| self.layer_path(name).exists());
        let lines: String = verified
            .iter()
            .map(|(name, found)| line(name, *found))
            .collect();
        write(&self.dir.join("verified"), lines.as_bytes())
    }
}

fn line(name: &LayerName, Verified { at_ms, whole }: Verified) -> String {
    let found = if whole { "whole" } else { "damaged" };
    format!("{name} {at_ms} {found}\n")
}

fn parse(line: &str) -> Option<(LayerName, Verified)> {
    let mut words = line.split(' ');
    let name = words.next()?.parse().ok()?;
    let at_ms = words.next()?.parse().ok()?;
    let whole = match words.next()? {
        "whole" => true,
        "damaged" => false,
        _ => return None,
    };
    Some((name, Verified { at_ms, whole }))
}
