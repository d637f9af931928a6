//! Bytes of a stream, in both directions.
//!
//! The first byte says how the rest is cut. Whole or in pieces, the bytes must
//! come to the same messages and the same end; what was decoded must encode to
//! bytes that decode to it again; and what is held back stays bounded.

#![no_main]

use std::fmt::Debug;

use coppice_agent_protocol::{
    DecodeError, Decoder, HEADER_LEN, MAX_MESSAGE, MAX_PAYLOAD, Message, ToAgent, ToHost,
};
use libfuzzer_sys::fuzz_target;

fn decode<M: Message>(bytes: &[u8], piece: usize) -> (Vec<M>, Option<DecodeError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for part in bytes.chunks(piece) {
        decoder.push(part);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
        assert!(decoder.pending() < MAX_MESSAGE + HEADER_LEN + MAX_PAYLOAD);
    }
    (messages, None)
}

fn check<M: Message + PartialEq + Debug>(bytes: &[u8], piece: usize) {
    let whole = decode::<M>(bytes, bytes.len().max(1));
    assert_eq!(whole, decode::<M>(bytes, piece));
    let (messages, _) = whole;
    let mut encoded = Vec::new();
    for message in &messages {
        message
            .encode(&mut encoded)
            .expect("what arrived also fits");
    }
    assert_eq!(decode::<M>(&encoded, MAX_PAYLOAD), (messages, None));
}

fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else {
        return;
    };
    let piece = usize::from(*cut) + 1;
    check::<ToAgent>(bytes, piece);
    check::<ToHost>(bytes, piece);
});
