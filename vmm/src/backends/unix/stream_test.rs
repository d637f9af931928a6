use super::*;

fn pair() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (Stream::from(a), Stream::from(b))
}

#[test]
fn bytes_go_from_scattered_memory_to_scattered_memory() {
    let (a, b) = pair();
    let mut data: Vec<u8> = (0..100).collect();
    // More pieces than one call takes, some of them empty.
    let slices: Vec<_> = data
        .chunks_mut(2)
        .flat_map(|part| [VolatileSlice::from(part), VolatileSlice::from(&mut [][..])])
        .collect();
    let sent = a.send(&slices).unwrap();
    assert_eq!(sent, 2 * IoVector::ENTRIES);
    let (mut front, mut back) = ([0; 10], [0; 90]);
    let room = [
        VolatileSlice::from(&mut front[..]),
        VolatileSlice::from(&mut back[..]),
    ];
    assert_eq!(b.receive(&room, 30).unwrap(), 30);
    assert_eq!(front[..], data[..10]);
    assert_eq!(back[..20], data[10..30]);
    assert_eq!(back[20..], [0; 70]);
}

#[test]
fn nothing_waits_and_nothing_kills_the_process() {
    let (a, b) = pair();
    let mut buffer = [1; 4096];
    let room = [VolatileSlice::from(&mut buffer[..])];
    let kind = |result: io::Result<usize>| result.unwrap_err().kind();
    assert_eq!(kind(a.receive(&room, 10)), io::ErrorKind::WouldBlock);
    assert_eq!(kind(a.peek(&mut [0])), io::ErrorKind::WouldBlock);
    while a.send(&room).is_ok() {}
    assert_eq!(kind(a.send(&room)), io::ErrorKind::WouldBlock);
    drop(b);
    // No SIGPIPE, whatever the process does about it elsewhere.
    assert_eq!(kind(a.send(&room)), io::ErrorKind::BrokenPipe);
}

#[test]
fn peeking_takes_nothing() {
    let (a, b) = pair();
    a.send(&[VolatileSlice::from(&mut b"abc".to_owned()[..])])
        .unwrap();
    let mut seen = [0; 8];
    assert_eq!(b.peek(&mut seen).unwrap(), 3);
    assert_eq!(b.peek(&mut seen).unwrap(), 3);
    assert_eq!(&seen[..3], b"abc");
}

#[test]
fn an_ended_direction_reads_as_the_end() {
    let (a, b) = pair();
    a.end(Shutdown::Write);
    a.end(Shutdown::Write);
    let mut buffer = [0; 8];
    let room = [VolatileSlice::from(&mut buffer[..])];
    assert_eq!(b.receive(&room, 8).unwrap(), 0);
    b.send(&[VolatileSlice::from(&mut b"back".to_owned()[..])])
        .unwrap();
    assert_eq!(a.receive(&room, 8).unwrap(), 4);
}

#[test]
fn only_sockets_are_connected_to() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    assert!(Stream::connect(&at("socket")).is_ok());

    std::os::unix::fs::symlink(at("socket"), at("link")).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let fifo = std::ffi::CString::new(at("fifo").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: `fifo` is a C string that lives across the call.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    for name in ["link", "dir", "file", "fifo"] {
        let error = Stream::connect(&at(name)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    let kind = |path: &Path| Stream::connect(path).unwrap_err().kind();
    assert_eq!(kind(&at("missing")), io::ErrorKind::NotFound);
    assert_eq!(kind(&at(&"x".repeat(200))), io::ErrorKind::InvalidInput);
    assert_eq!(kind(Path::new("")), io::ErrorKind::InvalidInput);
}

#[test]
fn a_full_backlog_does_not_make_anybody_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("busy");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match Stream::connect(&path) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}
