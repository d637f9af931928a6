//! What a client sends, and what a configuration file contains.
//!
//! The bytes are taken as a connection, once whole and once in pieces: both must
//! come to the same. Each request goes through the router, and the body of each
//! is also read as a configuration file.

#![no_main]

use coppice_vmm::api::file;
use coppice_vmm::api::http::{Decoder, Event, Refusal};
use coppice_vmm::api::router::route;
use libfuzzer_sys::fuzz_target;

const MAX_BODY: usize = 4096;

fn decode(bytes: &[u8], piece: usize) -> (Vec<Event>, Option<Refusal>) {
    let mut decoder = Decoder::new(MAX_BODY);
    let mut events = Vec::new();
    for part in bytes.chunks(piece) {
        decoder.push(part);
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(refusal) => return (events, Some(refusal)),
            }
        }
    }
    (events, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&piece, bytes)) = input.split_first() else {
        return;
    };
    let (mut whole, refusal) = decode(bytes, usize::MAX);
    let (mut pieces, refusal_in_pieces) = decode(bytes, usize::from(piece).max(1));
    // Only who sends its body late is told to go on.
    whole.retain(|event| *event != Event::Continue);
    pieces.retain(|event| *event != Event::Continue);
    assert_eq!(whole, pieces);
    assert_eq!(refusal, refusal_in_pieces);

    for event in &whole {
        if let Event::Request(request) = event {
            assert!(request.body.len() <= MAX_BODY);
            let _ = route(request);
            let _ = file::requests(&request.body);
        }
    }
});
