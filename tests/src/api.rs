//! A client of the API socket, by hand: one request, one connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::output::PATIENCE;

/// What the API answered.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The words of a refusal.
    ///
    /// # Panics
    /// It is none, or it has no words.
    pub fn fault(&self) -> String {
        assert_eq!(self.status, 400, "{}", self.body);
        let fault = self.json()["fault_message"].as_str().map(str::to_owned);
        fault.unwrap_or_else(|| panic!("no fault_message: {}", self.body))
    }
}

/// Whether anyone listens at `socket`.
pub(crate) fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// One request and its answer.
///
/// # Panics
/// The API does not answer.
pub fn request(socket: &Path, method: &str, path: &str, body: Option<&str>) -> Answer {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a limit can be set");
    let body = body.unwrap_or("");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("the API reads");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("the API answers");
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no HTTP answer to {method} {path}: {line:?}"));
    let mut len = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).expect("headers end");
        let header = line.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            len = value.trim().parse().expect("a length is a number");
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).expect("the body is whole");
    Answer {
        status,
        body: String::from_utf8(body).expect("the API speaks UTF-8"),
    }
}
