//! Real clients on a real socket: well-behaved, slow, gone and rude ones.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use vmm_sys_util::tempdir::TempDir;

use super::*;

struct Bench {
    server: Server,
    path: PathBuf,
    /// Requests that reached the handler.
    handled: usize,
    _folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = TempDir::new().expect("a folder");
        let path = folder.as_path().join("api.socket");
        let server = Server::bind(&path, 51_200).expect("binds");
        Bench {
            server,
            path,
            handled: 0,
            _folder: folder,
        }
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(&self.path).expect("connects");
        client.set_nonblocking(true).expect("sets");
        client
    }

    /// Lets the server do all that it can.
    fn serve(&mut self) {
        for _ in 0..8 {
            self.server.serve(&mut |_| {
                self.handled += 1;
                Some(Answer::Done)
            });
        }
    }

    /// Sends `bytes` and reads what comes back until nothing more does.
    fn exchange(&mut self, client: &mut UnixStream, bytes: &[u8]) -> String {
        client.write_all(bytes).expect("sends");
        let mut answers = String::new();
        loop {
            self.serve();
            match received(client) {
                more if more.is_empty() => return answers,
                more => answers.push_str(&more),
            }
        }
    }

    fn is_idle(&self) -> bool {
        let mut ready = [EpollEvent::default(); 1];
        self.server.epoll.wait(0, &mut ready).expect("polls") == 0
    }
}

fn received(client: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
    }
    String::from_utf8(bytes).expect("is text")
}

fn is_closed(client: &mut UnixStream) -> bool {
    matches!(client.read(&mut [0; 1]), Ok(0))
}

const GET: &[u8] = b"GET /version HTTP/1.1\r\n\r\n";

#[test]
fn one_connection_many_requests() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    for _ in 0..3 {
        let answer = bench.exchange(&mut client, GET);
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
    let answers = bench.exchange(&mut client, &GET.repeat(500));
    assert_eq!(answers.matches("HTTP/1.1 204").count(), 500);
    let answer = bench.exchange(&mut client, b"PUT /nonsense HTTP/1.1\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("fault_message"),
        "{answer}"
    );
    assert!(bench.exchange(&mut client, GET).starts_with("HTTP/1.1 204"));
    assert_eq!(bench.handled, 504);
    assert!(bench.is_idle());
}

#[test]
fn a_body_in_pieces_and_with_continue() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let answer = bench.exchange(
        &mut client,
        b"PUT /entropy HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(answer, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(bench.exchange(&mut client, b"{"), "");
    assert!(
        bench
            .exchange(&mut client, b"}")
            .starts_with("HTTP/1.1 204")
    );
}

#[test]
fn too_much_is_refused_and_the_client_reads_why() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let head = b"PUT /entropy HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n";
    client.write_all(head).expect("sends");
    // It sends its body without looking at the answer, as simple clients do.
    let mut body = vec![b' '; 1 << 20]
        .into_iter()
        .collect::<std::collections::VecDeque<u8>>();
    while !body.is_empty() {
        bench.serve();
        match client.write(body.make_contiguous()) {
            Ok(count) => drop(body.drain(..count)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    bench.serve();
    let answer = received(&mut client);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("51200 bytes"), "{answer}");
    assert_eq!(bench.handled, 0);
    drop(client);
    bench.serve();
    assert!(bench.server.connections.is_empty());
}

#[test]
fn close_is_honoured() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let answer = bench.exchange(&mut client, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(answer.contains("Connection: close"), "{answer}");
    assert!(is_closed(&mut client));
    assert_eq!(bench.exchange(&mut client, GET), "");
    assert_eq!(bench.handled, 1);

    // A client that closes its half of the connection still gets its answer.
    let mut client = bench.connect();
    client.write_all(GET).expect("sends");
    client.shutdown(std::net::Shutdown::Write).expect("closes");
    bench.serve();
    assert!(received(&mut client).starts_with("HTTP/1.1 204"));
    drop(client);
    bench.serve();
    assert!(bench.is_idle());
}

#[test]
fn vanished_clients_are_forgotten() {
    let mut bench = Bench::new();
    for bytes in [
        b"".as_slice(),
        b"PUT /vs",
        b"PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
        GET,
    ] {
        let mut client = bench.connect();
        client.write_all(bytes).expect("sends");
        drop(client);
        bench.serve();
    }
    assert!(bench.server.connections.is_empty());
    assert!(bench.is_idle());
}

#[test]
fn a_client_that_never_reads_is_bounded() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let mut sent = 0;
    loop {
        match client.write(&GET.repeat(100)) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let before = bench.handled;
                bench.serve();
                if bench.handled == before {
                    break;
                }
            }
        }
        assert!(sent < 64 << 20, "the server takes requests for ever");
    }
    assert!(bench.is_idle(), "the server does not spin on it");

    // Others are served meanwhile, and it can catch up.
    let mut other = bench.connect();
    assert!(bench.exchange(&mut other, GET).starts_with("HTTP/1.1 204"));
    let mut answers = 0;
    loop {
        let text = received(&mut client);
        if text.is_empty() {
            break;
        }
        answers += text.matches("HTTP/1.1 204").count();
        bench.serve();
    }
    assert!(answers > 500, "{answers}");
}

#[test]
fn silent_clients_make_room() {
    let mut bench = Bench::new();
    let mut first = bench.connect();
    assert!(bench.exchange(&mut first, GET).starts_with("HTTP/1.1 204"));
    let mut silent: Vec<UnixStream> = (1..MAX_CONNECTIONS).map(|_| bench.connect()).collect();
    bench.serve();
    assert!(bench.exchange(&mut first, GET).starts_with("HTTP/1.1 204"));
    let mut late = bench.connect();
    assert!(bench.exchange(&mut late, GET).starts_with("HTTP/1.1 204"));
    assert_eq!(bench.server.connections.len(), MAX_CONNECTIONS);
    assert!(
        is_closed(&mut silent[0]),
        "the one that was silent for longest goes"
    );
    assert!(bench.exchange(&mut first, GET).starts_with("HTTP/1.1 204"));
}

#[test]
fn the_socket_is_private_and_goes_away() {
    let bench = Bench::new();
    let mode = fs::metadata(&bench.path)
        .expect("is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let Bench { server, path, .. } = bench;
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_dead_one_replaced() {
    let bench = Bench::new();
    let text = Server::bind(&bench.path, 1)
        .err()
        .expect("is in use")
        .to_string();
    assert!(
        text.contains("in use") && text.contains("api.socket"),
        "{text}"
    );
    drop(UnixStream::connect(&bench.path).expect("still serves"));

    let folder = TempDir::new().expect("a folder");
    let path = folder.as_path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    assert!(path.exists(), "std leaves the file");
    let server = Server::bind(&path, 1).expect("replaces it");
    drop(UnixStream::connect(&path).expect("serves"));

    // If another process took the path meanwhile, its socket is not ours to remove.
    fs::remove_file(&path).expect("removes");
    fs::write(&path, "not a socket").expect("writes");
    drop(server);
    assert!(path.exists());
    let text = Server::bind(&path, 1).err().expect("is a file").to_string();
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(fs::read_to_string(&path).expect("reads"), "not a socket");
}

#[test]
fn paths_that_cannot_be() {
    let folder = TempDir::new().expect("a folder");
    let fill = 107 - folder.as_path().as_os_str().len() - 1;
    let fits = folder.as_path().join("s".repeat(fill));
    drop(Server::bind(&fits, 1).expect("107 bytes fit"));
    let long = folder.as_path().join("s".repeat(fill + 1));
    let text = Server::bind(&long, 1)
        .err()
        .expect("108 do not")
        .to_string();
    assert!(
        text.contains("has 108 bytes; a socket path has 1 to 107"),
        "{text}"
    );
    let nowhere = folder.as_path().join("no/where");
    let text = Server::bind(&nowhere, 1)
        .err()
        .expect("no folder")
        .to_string();
    assert!(
        text.contains("no/where") && text.contains("No such file"),
        "{text}"
    );
}
