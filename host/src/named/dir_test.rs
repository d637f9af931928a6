use super::*;
use crate::named::record::Facts;
use crate::process::ProcessId;
use std::process::Command;

fn place() -> (tempfile::TempDir, Place) {
    let dir = tempfile::tempdir().expect("directory");
    let place = Place::open_in(dir.path()).expect("made");
    (dir, place)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// Makes the directory of a machine whose VMM is `vmm`.
fn up(place: &Place, text: &str, vmm: ProcessId) -> Paths {
    let held = place.create(&name(text)).expect("made");
    let record = Record {
        vmm,
        created: 0,
        facts: Facts {
            vcpus: 1,
            memory_mib: 128,
            ..Facts::default()
        },
    };
    record.write(held.paths.dir()).expect("written");
    held.paths
}

fn me() -> ProcessId {
    ProcessId::of(std::process::id() as i32).expect("I run")
}

fn nobody() -> ProcessId {
    let mut child = Command::new("true").spawn().expect("started");
    let id = ProcessId::of(child.id() as i32).expect("not waited for");
    child.wait().expect("waited");
    id
}

fn names(place: &Place) -> Vec<String> {
    let names = place.names().expect("listed").into_iter();
    names.map(|name| name.to_string()).collect()
}

#[test]
fn a_name_is_taken_once() {
    let (_dir, place) = place();
    let held = place.create(&name("a")).expect("made");
    assert!(matches!(
        place.create(&name("a")),
        Err(Error::MachineExists(_))
    ));
    assert!(matches!(place.find(&name("a")), Ok((_, State::Starting))));
    assert!(matches!(place.hold(&name("a")), Err(Error::MachineBusy(_))));
    held.remove().expect("removed");
    assert!(matches!(place.find(&name("a")), Err(Error::NoMachine(_))));
    assert!(matches!(place.hold(&name("a")), Err(Error::NoMachine(_))));

    up(&place, "a", me());
    assert!(matches!(
        place.create(&name("a")),
        Err(Error::MachineExists(_))
    ));
    assert!(matches!(place.find(&name("a")), Ok((_, State::Alive(..)))));
}

#[test]
fn the_dead_are_shown_and_go_with_the_next_start() {
    let (_dir, place) = place();
    up(&place, "alive", me());
    up(&place, "dead", nobody());
    // What a `start` leaves that was killed.
    let remains = place.create(&name("remains")).expect("made").paths;
    // Its lock went with the value. Making it swept the dead.
    assert!(matches!(
        place.find(&name("dead")),
        Err(Error::NoMachine(_))
    ));

    up(&place, "dead", nobody());
    assert!(!remains.dir().exists());
    assert_eq!(names(&place), ["alive", "dead"]);
    assert!(matches!(place.find(&name("dead")), Ok((_, State::Dead(_)))));
    // Somebody stops it, perhaps to read its log before.
    let (held, _) = place.hold(&name("dead")).expect("held");
    up(&place, "new", me());
    assert_eq!(names(&place), ["alive", "dead", "new"]);
    held.remove().expect("removed");
    // Its name is free at once.
    up(&place, "dead", nobody());
    up(&place, "dead", me());
    assert_eq!(names(&place), ["alive", "dead", "new"]);
}

#[test]
fn a_name_that_no_socket_has_room_for_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let deep = dir
        .path()
        .join("x".repeat(50 - dir.path().as_os_str().len()));
    fs::create_dir(&deep).expect("made");
    let place = Place::open_in(&deep).expect("made");
    let fits = runtime::room_for_name(&place.0);
    let error = place
        .create(&name(&"n".repeat(fits + 1)))
        .expect_err("too long");
    assert!(
        error.to_string().contains(&format!("at most {fits}")),
        "{error}"
    );
    let held = place.create(&name(&"n".repeat(fits))).expect("fits");
    let longest = held.paths.dir().join("vsock_4294967295");
    std::os::unix::net::UnixListener::bind(longest).expect("bound");
}
