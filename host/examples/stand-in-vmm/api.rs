//! The API's side of the stand-in: a machine that always runs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::thread;

/// Answers every request at `socket` with what `GET /` brings.
pub fn serve(socket: &str) {
    let listener = UnixListener::bind(socket).expect("the API's socket can be listened on");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection comes in");
            let mut line = String::new();
            let mut lines = BufReader::new(stream.try_clone().expect("cloned"));
            while lines.read_line(&mut line).is_ok_and(|len| len > 2) {
                line.clear();
            }
            let body = r#"{"app_name":"stand-in","id":"x","state":"Running","vmm_version":"0"}"#;
            let len = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}");
            // Who asked may have gone.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}
