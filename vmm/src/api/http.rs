//! HTTP/1.1 as far as the API needs it: bytes to requests and answers to bytes.
//!
//! [`Decoder`] does no I/O and takes bytes in pieces of any size. What it
//! refuses it refuses for good: after a [`Refusal`] nobody can tell where the
//! next request begins, so the connection has to end.

use std::fmt::Write;

use super::Answer;

/// Longest request line with headers, and longest trailer section, in bytes.
pub const MAX_HEAD: usize = 8 * 1024;
/// Most headers of one request.
const MAX_HEADERS: usize = 64;
/// Longest line that announces a chunk, extensions included.
const MAX_CHUNK_LINE: usize = 128;

/// A request as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method, such as `PUT`.
    pub method: String,
    /// The request target, such as `/drives/rootfs`.
    pub target: String,
    /// The body; empty if there was none.
    pub body: Vec<u8>,
    /// Whether the client wants to send more requests on this connection.
    pub keep_alive: bool,
}

/// What the bytes received so far come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The client waits for `100 Continue` before it sends the body.
    Continue,
    /// A whole request.
    Request(HttpRequest),
}

/// Why the rest of a connection cannot be understood or is not wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status code.
    pub status: u16,
    /// The reason, for people.
    pub message: String,
}

fn refuse<T>(status: u16, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        status,
        message: message.into(),
    })
}

/// Takes the bytes of one connection apart.
#[derive(Debug)]
pub struct Decoder {
    max_body: usize,
    received: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Head,
    Body {
        request: HttpRequest,
        framing: Framing,
    },
}

/// Where in the body the decoder is.
#[derive(Debug)]
enum Framing {
    /// So many bytes are to come.
    Length(usize),
    /// A line with the size of a chunk is to come.
    ChunkSize,
    /// So many bytes of a chunk are to come.
    ChunkData(usize),
    /// The line end after a chunk is to come.
    ChunkEnd,
    /// Trailers are to come, of which so many bytes have been seen.
    Trailers(usize),
}

/// What the head says about the body.
struct BodyPlan {
    framing: Framing,
    wants_continue: bool,
}

impl Decoder {
    /// A decoder that refuses bodies of more than `max_body` bytes.
    pub fn new(max_body: usize) -> Decoder {
        Decoder {
            max_body,
            received: Vec::new(),
            state: State::Head,
        }
    }

    /// Takes in what the client sent. To bound memory, call it only when
    /// [`Decoder::next_event`] had nothing more to give.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are no acceptable request. The decoder must not be used again.
    pub fn next_event(&mut self) -> Result<Option<Event>, Refusal> {
        if let State::Head = self.state {
            let Some((request, plan, used)) = parse_head(&self.received, self.max_body)? else {
                return Ok(None);
            };
            self.received.drain(..used);
            self.state = State::Body {
                request,
                framing: plan.framing,
            };
            if plan.wants_continue && self.received.is_empty() {
                return Ok(Some(Event::Continue));
            }
        }
        if !self.take_body()? {
            return Ok(None);
        }
        match std::mem::replace(&mut self.state, State::Head) {
            State::Body { request, .. } => Ok(Some(Event::Request(request))),
            State::Head => Ok(None),
        }
    }

    /// Moves received bytes into the body. True once the body is complete.
    fn take_body(&mut self) -> Result<bool, Refusal> {
        let State::Body { request, framing } = &mut self.state else {
            return Ok(false);
        };
        let mut input = self.received.as_slice();
        let complete = loop {
            match framing {
                Framing::Length(0) => break true,
                Framing::Length(left) => {
                    *left -= take(&mut input, *left, &mut request.body);
                    break *left == 0;
                }
                Framing::ChunkSize => {
                    let Some(line) = take_line(&mut input, MAX_CHUNK_LINE)? else {
                        break false;
                    };
                    let size = chunk_size(line)?;
                    if size > self.max_body.saturating_sub(request.body.len()) {
                        return too_large(self.max_body);
                    }
                    *framing = match size {
                        0 => Framing::Trailers(0),
                        size => Framing::ChunkData(size),
                    };
                }
                Framing::ChunkData(0) => *framing = Framing::ChunkEnd,
                Framing::ChunkData(_) if input.is_empty() => break false,
                Framing::ChunkData(left) => *left -= take(&mut input, *left, &mut request.body),
                Framing::ChunkEnd => match take_line(&mut input, 0)? {
                    Some(_) => *framing = Framing::ChunkSize,
                    None => break false,
                },
                Framing::Trailers(seen) => match take_line(&mut input, MAX_HEAD - *seen)? {
                    Some([]) => break true,
                    // Nobody here needs a trailer.
                    Some(line) => *seen = (*seen + line.len() + 2).min(MAX_HEAD),
                    None => break false,
                },
            }
        };
        let used = self.received.len() - input.len();
        self.received.drain(..used);
        Ok(complete)
    }
}

/// Moves up to `most` bytes from the front of `input` to the end of `body`.
fn take(input: &mut &[u8], most: usize, body: &mut Vec<u8>) -> usize {
    let (taken, rest) = input.split_at(input.len().min(most));
    body.extend_from_slice(taken);
    *input = rest;
    taken.len()
}

/// Takes a line that ends in CR LF from the front of `input`. A bare LF is not
/// a line end: programs that differ on this can be made to see different
/// requests in the same bytes.
fn take_line<'a>(input: &mut &'a [u8], longest: usize) -> Result<Option<&'a [u8]>, Refusal> {
    let end = input.iter().position(|&byte| byte == b'\n');
    if end.unwrap_or(input.len()) > longest + 1 {
        return refuse(400, "a line of the chunked body is longer than it can be");
    }
    let Some(end) = end else { return Ok(None) };
    let (line, rest) = input.split_at(end + 1);
    *input = rest;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(Some(line)),
        None => refuse(400, "a line of the chunked body ends in LF without CR"),
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, Refusal> {
    // Extensions after a semicolon mean nothing to us (RFC 9112 §7.1.1).
    let digits = line
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii_end();
    let all_hex = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).unwrap_or_default();
    match usize::from_str_radix(digits, 16) {
        Ok(size) if all_hex => Ok(size),
        _ => refuse(400, "the size of a chunk is not 1 to 8 hexadecimal digits"),
    }
}

fn too_large<T>(most: usize) -> Result<T, Refusal> {
    refuse(
        413,
        format!("the body is larger than the {most} bytes that are accepted"),
    )
}

/// Parses request line and headers, if they are there in full.
fn parse_head(
    bytes: &[u8],
    max_body: usize,
) -> Result<Option<(HttpRequest, BodyPlan, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let used = match parsed.parse(&bytes[..bytes.len().min(MAX_HEAD)]) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => {
            return refuse(431, format!("the headers are longer than {MAX_HEAD} bytes"));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return refuse(431, format!("there are more than {MAX_HEADERS} headers"));
        }
        Err(httparse::Error::Version) => {
            return refuse(400, "the protocol is not HTTP/1.1 or HTTP/1.0");
        }
        Err(error) => return refuse(400, format!("this is not an HTTP request: {error}")),
    };
    let is_1_1 = parsed.version == Some(1);
    let (plan, keep_alive) = read_headers(parsed.headers, is_1_1, max_body)?;
    let request = HttpRequest {
        method: parsed.method.unwrap_or_default().to_owned(),
        target: parsed.path.unwrap_or_default().to_owned(),
        body: Vec::new(),
        keep_alive,
    };
    Ok(Some((request, plan, used)))
}

fn read_headers(
    headers: &[httparse::Header<'_>],
    is_1_1: bool,
    max_body: usize,
) -> Result<(BodyPlan, bool), Refusal> {
    let mut length = None;
    let mut chunked = false;
    let mut wants_continue = false;
    let mut keep_alive = is_1_1;
    for header in headers {
        let value = header.value.trim_ascii();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            if length.is_some() {
                return refuse(400, "there is more than one Content-Length");
            }
            length = Some(content_length(value, max_body)?);
        } else if is("transfer-encoding") {
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return refuse(
                    501,
                    "the only Transfer-Encoding that is understood is chunked",
                );
            }
            chunked = true;
        } else if is("expect") {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                return refuse(417, "the only Expect that is understood is 100-continue");
            }
            wants_continue = is_1_1;
        } else if is("connection") {
            for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    keep_alive = false;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    keep_alive = true;
                }
            }
        }
    }
    let framing = match (chunked, length) {
        // RFC 9112 §6.1 and §6.3: such requests are how smuggling is done.
        (true, Some(_)) => {
            return refuse(
                400,
                "there is both a Content-Length and a Transfer-Encoding",
            );
        }
        (true, None) if !is_1_1 => return refuse(400, "HTTP/1.0 has no Transfer-Encoding"),
        (true, None) => Framing::ChunkSize,
        (false, length) => Framing::Length(length.unwrap_or(0)),
    };
    let wants_continue = wants_continue && !matches!(framing, Framing::Length(0));
    Ok((
        BodyPlan {
            framing,
            wants_continue,
        },
        keep_alive,
    ))
}

fn content_length(value: &[u8], max_body: usize) -> Result<usize, Refusal> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return refuse(400, "Content-Length is not a number");
    }
    // More digits than fit a usize are also more bytes than are accepted.
    match std::str::from_utf8(value).unwrap_or_default().parse() {
        Ok(length) if length <= max_body => Ok(length),
        _ => too_large(max_body),
    }
}

/// The interim answer to [`Event::Continue`].
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends `answer` to `out`.
pub fn write_answer(out: &mut Vec<u8>, answer: &Answer, keep_alive: bool) {
    match answer {
        Answer::Done => write_response(out, 204, None, keep_alive),
        Answer::Json(json) => write_response(out, 200, Some(json), keep_alive),
        Answer::Fault(message) => write_response(out, 400, Some(&fault(message)), keep_alive),
    }
}

/// Appends the answer to a request that could not be taken in. The connection
/// ends with it.
pub fn write_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    write_response(out, refusal.status, Some(&fault(&refusal.message)), false);
}

fn fault(message: &str) -> String {
    serde_json::json!({ "fault_message": message }).to_string()
}

fn write_response(out: &mut Vec<u8>, status: u16, json: Option<&str>, keep_alive: bool) {
    let reason = match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        413 => "Payload Too Large",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Unknown",
    };
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let mut text = String::with_capacity(256);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "HTTP/1.1 {status} {reason}\r\nServer: coppice\r\nConnection: {connection}\r\n"
    );
    if let Some(json) = json {
        let length = json.len();
        let _ = write!(
            text,
            "Content-Type: application/json\r\nContent-Length: {length}\r\n"
        );
    }
    text.push_str("\r\n");
    text.push_str(json.unwrap_or_default());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
#[path = "http_test.rs"]
mod tests;
