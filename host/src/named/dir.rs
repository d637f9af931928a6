//! Directories of machines with names: made, found, listed, cleared away.
//!
//! Two locks keep commands apart. That of a machine's directory is held by the
//! command that starts or stops the machine, for as long as that takes, and is
//! never waited for. That of the place is held for moments: whoever makes,
//! removes or begins to hold a directory does so under it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;

use super::frozen::{self, Frozen};
use super::name::Name;
use super::record::Record;
use crate::error::{Error, LastWords};
use crate::parts::{INITRD, VSOCK};
use crate::runtime::{self, LOCK, lock, make_private};
use crate::tail::last_lines_of;
use crate::vmm::Logs;

/// The directory of directories, in a runtime directory. Short, because paths
/// of sockets have to be.
const PLACE: &str = "m";

/// Where a user's machines have their directories.
#[derive(Debug)]
pub struct Place(PathBuf);

/// What is known of a machine from its directory.
#[derive(Debug)]
pub enum State {
    /// A command is starting it.
    Starting,
    /// It was up, and its process runs.
    Alive(Record, OwnedFd),
    /// It was up, and its process has ended.
    Dead(Record),
    /// It never was up, and nobody is at it any more.
    Remains,
}

/// The files of one machine.
#[derive(Debug, Clone)]
pub struct Paths(PathBuf);

/// The files of a machine that are of use to others.
#[derive(Debug, Serialize)]
pub struct Files {
    dir: PathBuf,
    api_socket: PathBuf,
    vsock_socket: PathBuf,
    console_log: PathBuf,
}

/// A directory that this command alone works with.
#[derive(Debug)]
pub struct Held {
    /// Its files.
    pub paths: Paths,
    place: PathBuf,
    _lock: Flock<File>,
}

impl Place {
    /// The first place that will do, made if it is missing.
    pub fn open() -> Result<Self, Error> {
        runtime::in_first_of(&runtime::parents(), |parent| {
            make_private(parent)?;
            Self::open_in(parent)
        })
    }

    fn open_in(parent: &Path) -> io::Result<Self> {
        let place = parent.join(PLACE);
        runtime::check_room(&place, 1)?;
        make_private(&place)?;
        Ok(Self(place))
    }

    /// Makes the directory of a machine that is to be, and holds it. What is
    /// left of dead machines, of this name or another, is cleared away.
    pub fn create(&self, name: &Name) -> Result<Held, Error> {
        let max = runtime::room_for_name(&self.0);
        if name.as_str().len() > max {
            return Err(Error::NameTooLong {
                name: name.clone(),
                place: self.0.clone(),
                max,
            });
        }
        let paths = Paths(self.0.join(name));
        let made = self.alone().and_then(|_alone| {
            self.sweep();
            DirBuilder::new().mode(0o700).create(&paths.0)?;
            lock(&paths.0.join(LOCK), FlockArg::LockExclusiveNonblock)
        });
        match made {
            Ok(lock) => Ok(Held {
                paths,
                place: self.0.clone(),
                _lock: lock,
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::MachineExists(name.clone()))
            }
            Err(error) => Err(paths.unusable(error)),
        }
    }

    /// The directory and state of the machine `name`.
    pub fn find(&self, name: &Name) -> Result<(Paths, State), Error> {
        let paths = Paths(self.0.join(name));
        let _alone = self.alone().map_err(|error| paths.unusable(error))?;
        match paths.state() {
            Ok(State::Remains) => Err(Error::NoMachine(name.clone())),
            Ok(state) => Ok((paths, state)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::NoMachine(name.clone()))
            }
            Err(error) => Err(paths.unusable(error)),
        }
    }

    /// Holds the directory of the machine `name`, which nobody starts or stops
    /// then.
    pub fn hold(&self, name: &Name) -> Result<(Held, State), Error> {
        let paths = Paths(self.0.join(name));
        let held = self.alone().and_then(|_alone| {
            let state = paths.state()?;
            let lock = lock(&paths.0.join(LOCK), FlockArg::LockExclusiveNonblock)?;
            Ok((lock, state))
        });
        match held {
            Ok((lock, state)) => {
                let held = Held {
                    paths,
                    place: self.0.clone(),
                    _lock: lock,
                };
                Ok((held, state))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::NoMachine(name.clone()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Error::MachineBusy(name.clone()))
            }
            Err(error) => Err(paths.unusable(error)),
        }
    }

    /// The names of what could be machines, in order; [`find`](Self::find)
    /// says of each what it is.
    pub fn names(&self) -> Result<Vec<Name>, Error> {
        let entries = self.entries().map_err(|source| Error::MachineDir {
            path: self.0.clone(),
            source,
        })?;
        let mut names: Vec<_> = entries.map(|(name, _)| name).collect();
        names.sort();
        Ok(names)
    }

    /// A directory for a snapshot that only serves to fork.
    pub fn freeze(&self) -> Result<Frozen, Error> {
        let made = self.alone().and_then(|_alone| Frozen::create(&self.0));
        made.map_err(|source| Error::MachineDir {
            path: self.0.clone(),
            source,
        })
    }

    /// Removes what dead machines left, if nobody is at it.
    fn sweep(&self) {
        frozen::sweep(&self.0);
        let Ok(entries) = self.entries() else { return };
        for (_, paths) in entries {
            let dead = matches!(paths.state(), Ok(State::Dead(_) | State::Remains));
            if dead && lock(&paths.0.join(LOCK), FlockArg::LockExclusiveNonblock).is_ok() {
                // What cannot be removed stays for the next time.
                let _ = fs::remove_dir_all(&paths.0);
            }
        }
    }

    fn entries(&self) -> io::Result<impl Iterator<Item = (Name, Paths)>> {
        let entries = fs::read_dir(&self.0)?.flatten();
        Ok(entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?.parse().ok()?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            is_dir.then(|| (name, Paths(entry.path())))
        }))
    }

    /// Keeps others from making, removing and beginning to hold directories.
    fn alone(&self) -> io::Result<Flock<File>> {
        alone(&self.0)
    }
}

fn alone(place: &Path) -> io::Result<Flock<File>> {
    // No name of a machine begins with a dot.
    lock(&place.join(".lock"), FlockArg::LockExclusive)
}

impl Paths {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Where the VMM's API listens.
    pub fn api(&self) -> PathBuf {
        self.0.join("api.sock")
    }

    /// Where connections to the guest are made.
    pub fn vsock(&self) -> PathBuf {
        self.0.join(VSOCK)
    }

    /// The initial RAM disk that it boots with.
    pub fn initrd(&self) -> PathBuf {
        self.0.join(INITRD)
    }

    /// What the machine and its VMM wrote.
    pub fn logs(&self) -> Logs {
        Logs {
            console: self.0.join("console.log"),
            vmm: self.0.join("vmm.log"),
        }
    }

    /// What others are told of it.
    pub fn files(&self) -> Files {
        Files {
            dir: self.0.clone(),
            api_socket: self.api(),
            vsock_socket: self.vsock(),
            console_log: self.logs().console,
        }
    }

    /// The end of what was written.
    pub fn last_words(&self) -> LastWords {
        let logs = self.logs();
        LastWords {
            vmm: last_lines_of(&logs.vmm).unwrap_or_default(),
            console: last_lines_of(&logs.console).unwrap_or_default(),
            host: None,
        }
    }

    fn state(&self) -> io::Result<State> {
        if let Some(record) = Record::read(&self.0)? {
            return Ok(match record.vmm.open()? {
                Some(process) => State::Alive(record, process),
                None => State::Dead(record),
            });
        }
        if !self.0.is_dir() {
            return Err(io::ErrorKind::NotFound.into());
        }
        match lock(&self.0.join(LOCK), FlockArg::LockExclusiveNonblock) {
            Ok(_) => Ok(State::Remains),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(State::Starting),
            Err(error) => Err(error),
        }
    }

    fn unusable(&self, source: io::Error) -> Error {
        Error::MachineDir {
            path: self.0.clone(),
            source,
        }
    }
}

impl Held {
    /// Removes the directory. Its machine has to have ended.
    pub fn remove(self) -> Result<(), Error> {
        alone(&self.place)
            .and_then(|_alone| {
                fs::remove_dir_all(&self.paths.0)?;
                // It may have been the last that needed them.
                frozen::sweep(&self.place);
                Ok(())
            })
            .map_err(|error| self.paths.unusable(error))
    }
}

#[cfg(test)]
#[path = "dir_test.rs"]
mod tests;
