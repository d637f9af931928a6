//! A file that appears under its name whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// The end of every draft's name.
const SUFFIX: &str = ".draft";
/// Hexadecimal digits that make a draft's name unique.
const UNIQUE: usize = 16;

/// A file under construction: it lies beside its target under a name of its own
/// and is locked, until [`Draft::publish`] renames it. One that is dropped is
/// removed; one whose process was killed is no longer locked, and is removed by
/// whoever next writes the same target, or by the store's collection.
#[derive(Debug)]
pub struct Draft {
    file: Flock<File>,
    path: PathBuf,
    target: PathBuf,
    published: bool,
}

impl Draft {
    /// Begins a file that is to be `target`. Who may read it is the umask's.
    ///
    /// # Errors
    /// The directory is missing or cannot be written.
    pub fn beside(target: &Path) -> io::Result<Self> {
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::other("the path does not end with the name of a file"))?;
        let dir = parent(target);
        // Only tidiness: a directory that cannot be listed can still be written.
        let _ = sweep(dir, Some(name));
        loop {
            let path = dir.join(draft_name(name)?);
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)?;
            let file = lock(file, FlockArg::LockExclusive)?;
            // A collection may have taken the draft for a dead one before it was
            // locked: then it has no name any more.
            if file.metadata()?.nlink() > 0 {
                return Ok(Self {
                    file,
                    path,
                    target: target.to_owned(),
                    published: false,
                });
            }
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the draft lies until it is published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the content durable, then gives it its name, in place of whatever
    /// has that name. All of it survives a power cut when this returns.
    ///
    /// # Errors
    /// The host cannot write it. The target is then as it was.
    pub fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        let dir = parent(&self.target).to_owned();
        self.reveal()?;
        sync_dir(&dir)
    }

    /// As [`Draft::publish`], at another place in the same directory.
    ///
    /// # Errors
    /// As for [`Draft::publish`].
    pub fn publish_as(mut self, target: &Path) -> io::Result<()> {
        target.clone_into(&mut self.target);
        self.publish()
    }

    /// Gives the content its name, in place of whatever has that name, and does
    /// not wait for any disk: for what a power cut may take away.
    ///
    /// # Errors
    /// The host cannot rename it. The target is then as it was.
    pub fn reveal(mut self) -> io::Result<()> {
        std::fs::rename(&self.path, &self.target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to be told; a collection will try again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the drafts in `dir` whose writers are dead: those of `target` (the
/// name of a file), or all. Gives the number of bytes that they had.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn sweep(dir: &Path, target: Option<&OsStr>) -> io::Result<u64> {
    let mut freed = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_draft = match (of_draft(&name), target) {
            (Some(of), Some(target)) => of == target.as_bytes(),
            (of, None) => of.is_some(),
            (None, _) => false,
        };
        if is_draft {
            freed += remove_if_dead(&entry.path());
        }
    }
    Ok(freed)
}

/// Removes a draft that nobody has locked. One that cannot be opened or has
/// gone is somebody else's business.
fn remove_if_dead(path: &Path) -> u64 {
    let Ok(file) = crate::open::regular(path) else {
        return 0;
    };
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        return 0;
    };
    match (file.metadata(), std::fs::remove_file(path)) {
        (Ok(metadata), Ok(())) => metadata.blocks() * 512,
        _ => 0,
    }
}

/// `.NAME.0123456789abcdef.draft`
fn draft_name(target: &OsStr) -> io::Result<OsString> {
    let mut name = OsString::from(".");
    name.push(target);
    name.push(format!(".{}{SUFFIX}", unique()?));
    Ok(name)
}

/// Sixteen random hexadecimal digits.
pub(crate) fn unique() -> io::Result<String> {
    let mut unique = [0; UNIQUE / 2];
    getrandom::fill(&mut unique).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(unique)))
}

/// The target's name in a draft's name.
pub(crate) fn of_draft(name: &OsStr) -> Option<&[u8]> {
    let name = name.as_bytes().strip_prefix(b".")?;
    let name = name.strip_suffix(SUFFIX.as_bytes())?;
    let (target, unique) = name.split_at_checked(name.len().checked_sub(UNIQUE + 1)?)?;
    let is_unique = unique[0] == b'.' && unique[1..].iter().all(u8::is_ascii_hexdigit);
    is_unique.then_some(target)
}

pub(crate) fn lock(file: File, how: FlockArg) -> io::Result<Flock<File>> {
    let mut file = file;
    loop {
        match Flock::lock(file, how) {
            Ok(locked) => return Ok(locked),
            Err((again, nix::errno::Errno::EINTR)) => file = again,
            Err((_, errno)) => return Err(errno.into()),
        }
    }
}

/// Makes what was created, renamed or removed in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The directory that `path` lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_draft_is_its_target_only_when_published() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "before").unwrap();
        let dropped = Draft::beside(&target).unwrap();
        dropped.file().write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(names(dir.path()), ["target"]);
        let draft = Draft::beside(&target).unwrap();
        draft.file().write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"before");
        draft.publish().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"after");
        assert_eq!(names(dir.path()), ["target"]);
    }

    #[test]
    fn only_drafts_of_the_dead_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let alive = Draft::beside(&target).unwrap();
        let dead = dir.path().join(".target.0123456789abcdef.draft");
        let of_another = dir.path().join(".other.0123456789abcdef.draft");
        let no_draft = dir.path().join(".target.0123456789abcdeg.draft");
        for path in [&dead, &of_another, &no_draft] {
            std::fs::write(path, [1; 4096]).unwrap();
        }
        let second = Draft::beside(&target).unwrap();
        assert!(!dead.exists() && alive.path().exists() && second.path().exists());
        assert!(of_another.exists());
        assert_eq!(sweep(dir.path(), None).unwrap(), 4096);
        assert!(!of_another.exists() && no_draft.exists() && alive.path().exists());
    }
}
