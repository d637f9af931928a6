//! As much of HTTP as a VMM's socket needs.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use coppice_benches::Fallible;
use serde_json::Value;

/// Sends a request and returns the body of the answer, which must be one of
/// success.
pub fn request(
    mut stream: &UnixStream,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Fallible<String> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    if !body.is_empty() {
        head += "Content-Type: application/json\r\n";
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;

    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        if let Some((head, body)) = split(&answer)
            && body.len() >= content_length(head)
        {
            let status = head.split(' ').nth(1).unwrap_or_default();
            return match status {
                "200" | "204" => Ok(body.to_owned()),
                _ => Err(format!("status {status}: {body}").into()),
            };
        }
        match stream.read(&mut bytes)? {
            0 => return Err("the connection ended within the answer".into()),
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
}

fn split(answer: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")
}

fn content_length(head: &str) -> usize {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}
