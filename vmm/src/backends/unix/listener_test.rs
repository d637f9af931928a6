use std::os::unix::net::UnixStream;

use super::*;

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.sock");
    (dir, path)
}

/// Leaves a socket at `path` that nobody serves, as a killed process does.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(path.exists());
}

#[test]
fn the_path_exists_as_long_as_the_listener() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let _client = UnixStream::connect(&path).unwrap();
    assert!(listener.accept().unwrap().is_some());
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_served_path_is_refused_and_stays_served() {
    let (_dir, path) = place();
    let first = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("vm.sock") && text.contains("another path"),
        "{text}"
    );
    UnixStream::connect(&path).unwrap();
    // The attempt above left a connection too, of which only the end is known.
    assert!(first.accept().unwrap().is_some());
}

#[test]
fn a_path_with_a_full_backlog_is_in_use() {
    let (_dir, path) = place();
    let _first = Listener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = Stream::connect(&path) {
        waiting.push(stream);
    }
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
}

#[test]
fn a_stale_socket_is_replaced() {
    let (_dir, path) = place();
    leave_stale(&path);
    let listener = Listener::bind(&path).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    assert!(listener.accept().unwrap().is_some());
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let (_dir, path) = place();
    std::fs::write(&path, "precious").unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_link_to_a_stale_socket_is_not_followed() {
    let (dir, path) = place();
    let elsewhere = dir.path().join("elsewhere");
    leave_stale(&elsewhere);
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
    assert!(elsewhere.exists());
}

#[test]
fn a_path_that_was_taken_over_is_left_alone() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let successor = Listener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
    drop(successor);
    assert!(!path.exists());
}

#[test]
fn paths_that_fit_no_address_are_refused_with_their_length() {
    let (dir, _) = place();
    let base = dir.path().as_os_str().len() + 1;
    let longest = dir.path().join("x".repeat(PATH_MAX - base));
    drop(Listener::bind(&longest).unwrap());
    let error = Listener::bind(&dir.path().join("x".repeat(PATH_MAX + 1 - base))).unwrap_err();
    assert!(error.to_string().contains("108 bytes"), "{error}");
    assert!(matches!(
        Listener::bind(Path::new("")),
        Err(ListenError::Empty)
    ));
    let missing = Listener::bind(&dir.path().join("missing/vm.sock")).unwrap_err();
    assert!(matches!(missing, ListenError::Host { .. }), "{missing}");
}
