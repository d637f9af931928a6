//! The decoder on whole requests, on requests in pieces, and on what is none.

use super::*;

const MAX_BODY: usize = 51_200;

/// Feeds `bytes` in pieces of `piece` bytes and returns all that came of it.
fn decode(bytes: &[u8], piece: usize) -> Result<Vec<Event>, Refusal> {
    let mut decoder = Decoder::new(MAX_BODY);
    let mut events = Vec::new();
    for part in bytes.chunks(piece) {
        decoder.push(part);
        while let Some(event) = decoder.next_event()? {
            events.push(event);
        }
    }
    Ok(events)
}

fn request(method: &str, target: &str, body: &[u8]) -> Event {
    Event::Request(HttpRequest {
        method: method.to_owned(),
        target: target.to_owned(),
        body: body.to_vec(),
        keep_alive: true,
    })
}

fn status(bytes: &[u8]) -> u16 {
    let whole = decode(bytes, usize::MAX).expect_err("is refused");
    let pieces = decode(bytes, 1).expect_err("is refused in pieces, too");
    assert_eq!(whole, pieces, "{}", String::from_utf8_lossy(bytes));
    whole.status
}

#[test]
fn any_pieces_make_the_same_requests() {
    let bytes = b"PUT /vsock HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{\"a\"}\
                  GET / HTTP/1.1\r\n\r\n\r\n\
                  PATCH /vm HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n\
                  3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n\
                  GET /version HTTP/1.1\r\n\r\n";
    let expected = vec![
        request("PUT", "/vsock", b"{\"a\"}"),
        request("GET", "/", b""),
        request("PATCH", "/vm", b"abc0123456789"),
        request("GET", "/version", b""),
    ];
    for piece in [1, 2, 3, 7, 64, usize::MAX] {
        assert_eq!(
            decode(bytes, piece).as_ref(),
            Ok(&expected),
            "pieces of {piece}"
        );
    }
}

#[test]
fn bodies_up_to_the_limit() {
    for size in [0, 1, 1023, 1024, 1025, 4096, MAX_BODY] {
        let body = vec![b'x'; size];
        let plain = [
            format!("PUT / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n").as_bytes(),
            &body,
        ]
        .concat();
        let chunked = [
            format!("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n").as_bytes(),
            &body,
            if size == 0 {
                b"\r\n".as_slice()
            } else {
                b"\r\n0\r\n\r\n"
            },
        ]
        .concat();
        for bytes in [plain, chunked] {
            assert_eq!(
                decode(&bytes, 1),
                Ok(vec![request("PUT", "/", &body)]),
                "{size}"
            );
            assert_eq!(
                decode(&bytes, 4096),
                Ok(vec![request("PUT", "/", &body)]),
                "{size}"
            );
        }
    }
}

#[test]
fn bodies_over_the_limit_are_refused_before_they_arrive() {
    for length in ["51201", "1048576", "99999999999999999999999999"] {
        assert_eq!(
            status(format!("PUT / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n").as_bytes()),
            413
        );
    }
    let chunked = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(status(format!("{chunked}c801\r\n").as_bytes()), 413);
    assert_eq!(
        status(format!("{chunked}2\r\nab\r\nc7ff\r\n").as_bytes()),
        413
    );
}

#[test]
fn continue_is_said_once_and_only_to_those_who_wait() {
    let head = b"PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
    let mut decoder = Decoder::new(MAX_BODY);
    decoder.push(head);
    assert_eq!(decoder.next_event(), Ok(Some(Event::Continue)));
    assert_eq!(decoder.next_event(), Ok(None));
    decoder.push(b"{}");
    assert_eq!(decoder.next_event(), Ok(Some(request("PUT", "/", b"{}"))));

    let impatient = [head.as_slice(), b"{}"].concat();
    assert_eq!(
        decode(&impatient, usize::MAX),
        Ok(vec![request("PUT", "/", b"{}")])
    );

    assert_eq!(
        status(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 60000\r\n\r\n"),
        413
    );
    assert_eq!(
        status(b"PUT / HTTP/1.1\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n"),
        417
    );
}

#[test]
fn connection_options() {
    let keeps = |head: &str| match decode(head.as_bytes(), usize::MAX).as_deref() {
        Ok([Event::Request(request)]) => request.keep_alive,
        other => panic!("{other:?}"),
    };
    assert!(keeps("GET / HTTP/1.1\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.1\r\nConnection: TE, Close\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.0\r\n\r\n"));
    assert!(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
}

#[test]
fn what_could_be_understood_in_two_ways_is_refused() {
    for (head, expected) in [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2", 400),
        ("Content-Length: 2\r\nContent-Length: 2", 400),
        ("Content-Length: +2", 400),
        ("Content-Length: 0x2", 400),
        ("Content-Length: -2", 400),
        ("Content-Length: ", 400),
        ("Content-Length: 2, 2", 400),
        ("Content-Length : 2", 400),
        ("Transfer-Encoding: gzip, chunked", 501),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            501,
        ),
        ("Transfer-Encoding: identity", 501),
        ("X: a\r\n b", 400),
    ] {
        assert_eq!(
            status(format!("PUT / HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()),
            expected,
            "{head}"
        );
    }
    assert_eq!(
        status(b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        400
    );
}

#[test]
fn bad_chunks_are_refused() {
    let head = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long_extension = format!("1;{}\r\n", "x".repeat(200));
    let long_trailers = format!("0\r\n{}", "X: y\r\n".repeat(2000));
    for chunk in [
        "x\r\n",
        "\r\n",
        "-1\r\n",
        "+1\r\n",
        " 1\r\n",
        "0x1\r\n",
        "1\n",
        "123456789\r\n",
        "1\r\nab\r\n",
        "1\r\na\n",
        &long_extension,
        &long_trailers,
    ] {
        assert_eq!(
            status(format!("{head}{chunk}").as_bytes()),
            400,
            "{chunk:.20?}"
        );
    }
}

#[test]
fn endless_heads_are_refused() {
    assert_eq!(
        status(&[b"GET /", vec![b'a'; MAX_HEAD].as_slice()].concat()),
        431
    );
    assert_eq!(
        status(format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(2000)).as_bytes()),
        431
    );
    assert_eq!(status("\r\n".repeat(MAX_HEAD).as_bytes()), 431);
}

#[test]
fn garbage_is_refused() {
    for garbage in [
        b"\0\0\0\0".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / SPDY/1\r\n\r\n",
        b"GET\r\n\r\n",
        b"PUT / HTTP/1.1\r\nno colon\r\n\r\n",
    ] {
        assert_eq!(status(garbage), 400, "{garbage:?}");
    }
}

#[test]
fn answers_are_framed() {
    let text = |answer: &Answer, keep_alive| {
        let mut out = Vec::new();
        write_answer(&mut out, answer, keep_alive);
        String::from_utf8(out).expect("is text")
    };
    assert_eq!(
        text(&Answer::Done, true),
        "HTTP/1.1 204 No Content\r\nServer: coppice\r\nConnection: keep-alive\r\n\r\n"
    );
    assert_eq!(
        text(&Answer::Json("{\"ä\":1}".to_owned()), false),
        "HTTP/1.1 200 OK\r\nServer: coppice\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"ä\":1}"
    );
    let fault = text(&Answer::Fault("a \"b\"\n".to_owned()), true);
    assert!(fault.starts_with("HTTP/1.1 400 Bad Request\r\n"));
    assert!(
        fault.ends_with("\r\n\r\n{\"fault_message\":\"a \\\"b\\\"\\n\"}"),
        "{fault}"
    );
}
