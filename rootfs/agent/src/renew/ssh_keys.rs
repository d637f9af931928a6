//! The keys by which SSH clients know a machine.
//!
//! A key of the template is known to everybody who has a machine of the
//! template, so it must not prove anything about another. Keys are made by
//! `ssh-keygen`, which takes its time for RSA. So old keys are removed at once;
//! new ones are made before the host gets its answer only if a server runs,
//! which would serve the old ones out of its memory. Otherwise nothing can serve
//! a key until there is a new one, and they are made while the machine works.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::identity::Result;

const DIRECTORY: &str = "etc/ssh";
const KEYGEN: [&str; 3] = [
    "usr/bin/ssh-keygen",
    "usr/local/bin/ssh-keygen",
    "bin/ssh-keygen",
];

/// What OpenSSH's server calls itself.
const SERVER: &str = "sshd";

/// Removes every host key; their types are then `due` to be made.
pub(super) fn remove(root: &Path, due: &mut BTreeSet<String>) -> Result {
    let found = types(&root.join(DIRECTORY))?;
    if found.is_empty() && due.is_empty() {
        return Ok(None);
    }
    if keygen(root).is_none() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the guest has no ssh-keygen: its keys are still those of the snapshot",
        ));
    }
    for kind in found {
        let private = path(root, &kind);
        let mut public = private.clone().into_os_string();
        public.push(".pub");
        fs::remove_file(&private)?;
        match fs::remove_file(public) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => due.insert(kind),
        };
    }
    let names: Vec<&str> = due.iter().map(String::as_str).collect();
    Ok(Some(names.join(", ")))
}

/// The types of the private keys in `directory`: `ssh_host_TYPE_key`.
fn types(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut types = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let kind = name
            .to_str()
            .and_then(|name| name.strip_prefix("ssh_host_")?.strip_suffix("_key"));
        types.extend(kind.filter(|kind| !kind.is_empty()).map(str::to_owned));
    }
    Ok(types)
}

fn path(root: &Path, kind: &str) -> PathBuf {
    root.join(DIRECTORY).join(format!("ssh_host_{kind}_key"))
}

fn keygen(root: &Path) -> Option<PathBuf> {
    let mut places = KEYGEN.iter().map(|place| root.join(place));
    places.find(|place| place.exists())
}

/// What makes a key. Half a key of an attempt that was cut short goes first, as
/// `ssh-keygen` would ask whether it may.
pub(super) fn command(root: &Path, kind: &str) -> Vec<Vec<u8>> {
    let key = path(root, kind);
    let _ = fs::remove_file(&key);
    let program = keygen(root).unwrap_or_else(|| "ssh-keygen".into());
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let mut argv = vec![bytes(&program)];
    argv.extend(["-q", "-t", kind, "-N", "", "-C", "", "-f"].map(|word| word.as_bytes().to_vec()));
    argv.push(bytes(&key));
    argv
}

/// Has every server read its keys again.
pub(super) fn reload(root: &Path) -> Result {
    let servers = servers(root);
    for server in &servers {
        kill(*server, Signal::SIGHUP)?;
    }
    let ids: Vec<String> = servers.iter().map(Pid::to_string).collect();
    Ok((!ids.is_empty()).then(|| ids.join(", ")))
}

/// The servers that listen: those that no other one started for a connection.
pub(super) fn servers(root: &Path) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir(root.join("proc")) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        if let Some(id) = id
            && let Ok(stat) = fs::read_to_string(entry.path().join("stat"))
            && let Some(parent) = server_parent(&stat)
        {
            all.push((id, parent));
        }
    }
    let ids: BTreeSet<i32> = all.iter().map(|(id, _)| *id).collect();
    let listening = all.iter().filter(|(_, parent)| !ids.contains(parent));
    listening.map(|(id, _)| Pid::from_raw(*id)).collect()
}

/// The parent, if this line of proc_pid_stat(5) is a server's.
fn server_parent(stat: &str) -> Option<i32> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let parent = rest.split(' ').nth(1)?;
    (name == SERVER).then(|| parent.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(root.path().join(DIRECTORY)).expect("made");
        for name in [
            "ssh_host_rsa_key",
            "ssh_host_rsa_key.pub",
            "ssh_host_ed25519_key",
            "ssh_host__key",
            "sshd_config",
        ] {
            fs::write(root.path().join(DIRECTORY).join(name), "old").expect("written");
        }
        root
    }

    #[test]
    fn without_ssh_keygen_the_keys_stay_and_it_is_told() {
        let root = guest();
        let mut due = BTreeSet::new();
        let error = remove(root.path(), &mut due).expect_err("nothing can make new ones");
        assert!(error.to_string().contains("ssh-keygen"), "{error}");
        assert!(path(root.path(), "rsa").exists() && due.is_empty());
    }

    #[test]
    fn old_keys_go_and_are_due_until_they_are_made() {
        let root = guest();
        fs::create_dir_all(root.path().join("usr/bin")).expect("made");
        fs::write(root.path().join(KEYGEN[0]), "").expect("written");
        let mut due = BTreeSet::new();
        for _ in 0..2 {
            let removed = remove(root.path(), &mut due).expect("removed");
            assert_eq!(removed.as_deref(), Some("ed25519, rsa"));
        }
        let left = fs::read_dir(root.path().join(DIRECTORY)).expect("listed");
        let mut left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, ["ssh_host__key", "sshd_config"]);
        due.clear();
        assert_eq!(remove(root.path(), &mut due).expect("looked"), None);
    }

    #[test]
    fn a_guest_without_ssh_has_nothing_to_renew() {
        let root = tempfile::tempdir().expect("a directory");
        let mut due = BTreeSet::new();
        assert_eq!(remove(root.path(), &mut due).expect("looked"), None);
        assert!(servers(root.path()).is_empty());
    }

    #[test]
    fn the_servers_that_listen_are_told_from_those_of_connections() {
        let root = tempfile::tempdir().expect("a directory");
        for (id, stat) in [
            (10, "10 (sshd) S 1 10 10"),
            (11, "11 (sshd) S 10 11 11"),
            (12, "12 (odd) sshd) S 1 12 12"),
            (13, "13 (bash) S 11 13 13"),
        ] {
            let dir = root.path().join("proc").join(id.to_string());
            fs::create_dir_all(&dir).expect("made");
            fs::write(dir.join("stat"), stat).expect("written");
        }
        assert_eq!(servers(root.path()), [Pid::from_raw(10)]);
    }
}
