//! Small files that are replaced whole.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;

/// Gives the file at `path` this content and mode. Who reads it meanwhile sees
/// the old content or the new one; who watches its directory is told.
pub(super) fn replace(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".coppice-new");
    let new = Path::new(&name);
    let written = File::create(new).and_then(|mut file| {
        file.write_all(content.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(new, path)
    });
    written.or_else(|error| {
        let _ = fs::remove_file(new);
        // A file that something is mounted on cannot be replaced, only written.
        match error.raw_os_error() == Some(Errno::EBUSY as i32) {
            true => fs::write(path, content),
            false => Err(error),
        }
    })
}

/// The same if there is such a file already, keeping its mode; tells whether
/// there is. A link is none: what it leads to has a step of its own.
pub(super) fn replace_existing(path: &Path, content: &str) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(old) if old.is_file() => {
            replace(path, content, old.permissions().mode() & 0o7777)?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn content_is_replaced_whole_and_the_mode_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("id");
        assert!(!replace_existing(&path, "new\n").expect("looked"));
        assert!(!path.exists());
        fs::write(&path, "a longer old content\n").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("set");
        assert!(replace_existing(&path, "new\n").expect("replaced"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "new\n");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o444);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_link_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("link");
        symlink("/nowhere", &path).expect("linked");
        assert!(!replace_existing(&path, "x").expect("looked"));
        assert!(path.is_symlink());
    }
}
