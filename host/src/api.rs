//! A client of the VMM's API socket: one request, one connection.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The longest answer that is read. The machine's whole configuration is a
/// fraction of it.
const ANSWER_MAX: u64 = 1 << 20;

/// Why a request was not answered as it should have been.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nobody is there, or it takes too long.
    #[error("the VMM's socket {} does not answer: {source}", .socket.display())]
    Silent {
        /// Where it should listen.
        socket: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The VMM will not do it.
    #[error("the VMM refused: {0}")]
    Refused(String),
    /// What came makes no sense.
    #[error("the VMM's answer cannot be understood: {0}")]
    Garbled(String),
}

/// The API of one machine.
#[derive(Debug)]
pub struct Api<'a> {
    socket: &'a Path,
    patience: Duration,
}

/// `GET /`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Instance {
    /// Whether it runs.
    pub state: InstanceState,
}

/// What is to become of a running machine's snapshot: the body of
/// `PUT /snapshot/create`.
#[derive(Debug, Serialize)]
pub struct Freeze<'a> {
    /// All of the memory, or what has changed since the last snapshot.
    pub snapshot_type: Extent,
    /// The manifest to be written.
    pub snapshot_path: &'a Path,
    /// The memory layer to be written.
    pub mem_file_path: &'a Path,
    /// The machine runs on.
    pub live: bool,
    /// It only serves to start forks on this host.
    pub local: bool,
}

/// How much of the memory a snapshot writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Extent {
    /// All of it.
    Full,
    /// What has changed since the last.
    Diff,
}

/// What became of a snapshot.
#[derive(Debug, Clone, Deserialize)]
pub struct Frozen {
    /// For how long no vCPU ran, in microseconds.
    pub pause_us: u64,
    /// From the request to the end, in microseconds.
    pub total_us: u64,
    /// Pages of 4 KiB in the new memory layer that are not all zeroes.
    pub data_blocks: u64,
}

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum InstanceState {
    /// Its VMM waits for a configuration.
    #[serde(rename = "Not started")]
    NotStarted,
    /// It does.
    Running,
    /// Its vCPUs are halted.
    Paused,
}

impl<'a> Api<'a> {
    /// The API at `socket`. No single step of a request may take longer than
    /// `patience`.
    pub fn new(socket: &'a Path, patience: Duration) -> Self {
        Self { socket, patience }
    }

    /// What the machine says of itself.
    pub fn instance(&self) -> Result<Instance, ApiError> {
        self.get("/")
    }

    /// Lets the vCPUs run; nothing happens if they do.
    pub fn resume(&self) -> Result<(), ApiError> {
        let body = json!({ "state": "Resumed" }).to_string();
        self.request("PATCH", "/vm", &body).map(drop)
    }

    /// Makes a snapshot, which is complete when this returns.
    pub fn freeze(&self, freeze: &Freeze<'_>) -> Result<Frozen, ApiError> {
        #[derive(Deserialize)]
        struct Snapshots {
            last: Option<Frozen>,
        }
        let body = serde_json::to_string(freeze)
            .map_err(|error| ApiError::Garbled(format!("a path is not UTF-8 ({error})")))?;
        self.request("PUT", "/snapshot/create", &body)?;
        let snapshots: Snapshots = self.get("/snapshot")?;
        snapshots
            .last
            .ok_or_else(|| ApiError::Garbled("it does not know its snapshot".into()))
    }

    /// Has the VMM record which pages the machine has touched so far.
    pub fn record_working_set(&self, path: &Path) -> Result<(), ApiError> {
        let body = json!({ "path": path }).to_string();
        self.request("PUT", "/snapshot/working-set", &body)
            .map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let body = self.request("GET", path, "")?;
        serde_json::from_slice(&body).map_err(|error| ApiError::Garbled(error.to_string()))
    }

    /// Sends a request; the answer's body if it was granted.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<Vec<u8>, ApiError> {
        let answer = self
            .exchange(method, path, body)
            .map_err(|source| ApiError::Silent {
                socket: self.socket.to_path_buf(),
                source,
            })?;
        read_answer(&answer)
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.socket)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// The body of a whole HTTP answer.
fn read_answer(answer: &[u8]) -> Result<Vec<u8>, ApiError> {
    let garbled = |why: &str| ApiError::Garbled(why.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let len = match head.parse(answer) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Err(garbled("it ends within its headers")),
        Err(error) => return Err(garbled(&error.to_string())),
    };
    let status = head.code.unwrap_or_default();
    let named = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("content-length");
    let body_len = match head.headers.iter().find(named) {
        Some(header) => std::str::from_utf8(header.value)
            .ok()
            .and_then(|value| value.trim().parse::<usize>().ok())
            .ok_or_else(|| garbled("its length is no number"))?,
        None => 0,
    };
    let body = answer[len..]
        .get(..body_len)
        .ok_or_else(|| garbled("it ends within its body"))?;
    match status {
        200..=299 => Ok(body.to_vec()),
        _ => Err(ApiError::Refused(fault(status, body))),
    }
}

/// The words of a refusal.
fn fault(status: u16, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Fault {
        fault_message: String,
    }
    match serde_json::from_slice::<Fault>(body) {
        Ok(fault) => fault.fault_message,
        Err(_) => format!("status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let body = read_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").expect("good");
        assert_eq!(body, b"{}");
        let body = read_answer(b"HTTP/1.1 204 No Content\r\n\r\n").expect("good");
        assert!(body.is_empty());

        let refused =
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 26\r\n\r\n{\"fault_message\":\"no way\"}";
        let error = read_answer(refused).expect_err("refused").to_string();
        assert_eq!(error, "the VMM refused: no way");

        for garbled in [
            &b""[..],
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nConte",
        ] {
            let error = read_answer(garbled).expect_err("garbled");
            assert!(matches!(error, ApiError::Garbled(_)), "{error}");
        }
    }

    #[test]
    fn what_a_machine_says_of_itself() {
        let paused = br#"{"app_name":"x","id":"a","state":"Paused","vmm_version":"1"}"#;
        let instance: Instance = serde_json::from_slice(paused).expect("known");
        assert_eq!(instance.state, InstanceState::Paused);
    }
}
