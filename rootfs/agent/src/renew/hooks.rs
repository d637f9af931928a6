//! Programs that the image brings along to renew what the agent does not know.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use coppice_agent_protocol::Resumed;

use super::identity::hex;

/// Where they are.
const DIRECTORY: &str = "etc/coppice/resumed.d";

/// More are no hooks but a mistake.
const MAX_HOOKS: usize = 256;

/// The names of the hooks in the order in which they run: executable files,
/// sorted by the bytes of their names. Hidden files and editors' copies (`x~`)
/// are none, and neither is a name that is not UTF-8.
pub(super) fn list(root: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(root.join(DIRECTORY)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // Through links, which are how packages switch hooks on.
        let executable = fs::metadata(entry.path())
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if executable && !name.starts_with('.') && !name.ends_with('~') {
            names.push(name);
        }
    }
    if names.len() > MAX_HOOKS {
        return Err(io::Error::other(format!(
            "/{DIRECTORY} holds {} programs; the limit is {MAX_HOOKS}, and none was run",
            names.len()
        )));
    }
    names.sort_unstable();
    Ok(names)
}

/// What runs a hook.
pub(super) fn command(root: &Path, name: &str) -> Vec<Vec<u8>> {
    let path = root.join(DIRECTORY).join(name);
    vec![path.as_os_str().as_bytes().to_vec()]
}

/// What a hook is told of the machine.
pub(super) fn variables(request: &Resumed) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut variables = vec![(
        b"COPPICE_GENERATION".to_vec(),
        hex(&request.generation).into_bytes(),
    )];
    if let Some(name) = &request.hostname {
        variables.push((b"COPPICE_HOSTNAME".to_vec(), name.clone().into_bytes()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_the_executable_files_in_order() {
        let root = tempfile::tempdir().expect("a directory");
        assert!(list(root.path()).expect("none").is_empty());
        let dir = root.path().join(DIRECTORY);
        fs::create_dir_all(dir.join("subdirectory")).expect("made");
        for (name, mode) in [
            ("20-b", 0o755),
            ("10-a", 0o700),
            ("30-not-executable", 0o644),
            (".hidden", 0o755),
            ("40-copy~", 0o755),
        ] {
            fs::write(dir.join(name), "#!/bin/sh\n").expect("written");
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(dir.join(name), permissions).expect("set");
        }
        std::os::unix::fs::symlink("20-b", dir.join("05-link")).expect("linked");
        std::os::unix::fs::symlink("gone", dir.join("06-dangling")).expect("linked");
        let names = list(root.path()).expect("listed");
        assert_eq!(names, ["05-link", "10-a", "20-b"]);
    }
}
