//! The protocol as a stream of bytes: whatever is sent arrives, however it is
//! cut, and nothing that arrives can do harm.

use coppice_agent_protocol::*;

/// A small generator of repeatable randomness (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, limit: usize) -> Vec<u8> {
        (0..self.below(limit)).map(|_| self.next() as u8).collect()
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn resumed(&mut self) -> Resumed {
        Resumed {
            generation: std::array::from_fn(|_| self.next() as u8),
            seed: Seed(std::array::from_fn(|_| self.next() as u8)),
            wall_clock_ns: self.option(Random::next),
            hostname: self.option(|r| format!("größe-{}", r.next())),
            machine_id: self.below(2) == 0,
            ssh_keys: self.below(2) == 0,
            hooks: self.below(2) == 0,
        }
    }

    fn request(&mut self) -> ExecRequest {
        ExecRequest {
            command: if self.below(2) == 0 {
                Command::Argv((0..self.below(5)).map(|_| self.bytes(40)).collect())
            } else {
                Command::Shell(self.bytes(200))
            },
            env: (0..self.below(5))
                .map(|_| (self.bytes(20), self.bytes(20)))
                .collect(),
            clear_env: self.below(2) == 0,
            cwd: self.option(|r| r.bytes(30)),
            user: self.option(|r| r.bytes(30)),
            stdio: if self.below(2) == 0 {
                Stdio::Pipes {
                    stdin: self.below(2) == 0,
                }
            } else {
                Stdio::Tty(WindowSize {
                    rows: self.next() as u16,
                    cols: self.next() as u16,
                })
            },
            timeout_ms: self.option(Random::next),
            cleanup: [Cleanup::OnAbort, Cleanup::Always, Cleanup::GroupOnly][self.below(3)],
        }
    }
}

fn to_agent() -> Vec<ToAgent> {
    let mut random = Random(7);
    let mut all = vec![
        ToAgent::Hello(HostHello::default()),
        ToAgent::Info,
        ToAgent::Shutdown(PowerAction::PowerOff),
        ToAgent::Shutdown(PowerAction::Reboot),
        ToAgent::Stdin(vec![0; 3]),
        ToAgent::StdinClose,
        ToAgent::Signal(1),
        ToAgent::Signal(64),
        ToAgent::Resize(WindowSize {
            rows: 31,
            cols: 124,
        }),
    ];
    all.extend((0..50).map(|_| ToAgent::Exec(Box::new(random.request()))));
    all.extend((0..20).map(|_| ToAgent::Resumed(Box::new(random.resumed()))));
    all
}

fn to_host() -> Vec<ToHost> {
    let status = ExitStatus {
        outcome: Outcome::Code(255),
        timed_out: false,
        oom_killed: true,
        elapsed_us: u64::MAX,
    };
    vec![
        ToHost::Hello(AgentHello {
            protocol: PROTOCOL_VERSION,
            agent_version: "0.1.0".into(),
            init: true,
            boot: BootTimes {
                started_us: 1,
                root_us: 2,
                ready_us: 3,
            },
        }),
        ToHost::Started(4711),
        ToHost::Info(Box::new(Info {
            os_name: "Größe".into(),
            cpus: 32,
            cgroups: true,
            ..Info::default()
        })),
        ToHost::ShuttingDown,
        ToHost::Renewed(Box::default()),
        ToHost::Renewed(Box::new(Renewed {
            steps: [
                StepState::Done,
                StepState::Absent,
                StepState::Pending,
                StepState::Failed,
            ]
            .map(|state| Step {
                name: format!("hook {state:?}"),
                state,
                detail: "größer".into(),
                elapsed_us: 7,
            })
            .to_vec(),
            elapsed_us: u64::MAX,
        })),
        ToHost::Stdout(b"\x50\x01\x00\x00\x00 looks like a frame".to_vec()),
        ToHost::Stderr(vec![0xff; 100]),
        ToHost::StdinCredit(65536),
        ToHost::Exit(status),
        ToHost::Exit(ExitStatus {
            outcome: Outcome::Signal(9),
            timed_out: true,
            ..status
        }),
        ToHost::Error(AgentError::new(ErrorKind::Unsupported, "no")),
    ]
}

fn encode<M: Message>(messages: &[M]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        message.encode(&mut bytes).expect("fits");
    }
    bytes
}

fn drain<M: Message>(decoder: &mut Decoder<M>, into: &mut Vec<M>) {
    while let Some(message) = decoder.next_message().expect("valid bytes") {
        into.push(message);
    }
}

fn cut_everywhere<M: Message + PartialEq + std::fmt::Debug>(messages: Vec<M>) {
    let bytes = encode(&messages);
    for cut in 0..=bytes.len() {
        let mut decoder = Decoder::<M>::new();
        let mut got = Vec::new();
        for part in [&bytes[..cut], &bytes[cut..]] {
            decoder.push(part);
            drain(&mut decoder, &mut got);
        }
        assert_eq!(got, messages, "cut at {cut}");
        assert_eq!(decoder.pending(), 0);
    }
    let mut decoder = Decoder::<M>::new();
    let mut got = Vec::new();
    for byte in &bytes {
        decoder.push(std::slice::from_ref(byte));
        drain(&mut decoder, &mut got);
    }
    assert_eq!(got, messages, "one byte at a time");
}

#[test]
fn messages_survive_every_cut() {
    cut_everywhere(to_agent());
    cut_everywhere(to_host());
}

#[test]
fn a_shortened_or_lengthened_body_is_refused() {
    for message in to_agent() {
        let bytes = encode(std::slice::from_ref(&message));
        let body = &bytes[HEADER_LEN..];
        if matches!(message, ToAgent::Stdin(_)) {
            continue;
        }
        for len in 0..body.len() {
            assert!(
                ToAgent::decode(bytes[0], &body[..len]).is_err(),
                "{message:?} cut to {len}"
            );
        }
        let longer = [body, &[0]].concat();
        assert!(matches!(
            ToAgent::decode(bytes[0], &longer),
            Err(DecodeError::TrailingBytes { extra: 1, .. })
        ));
    }
}

#[test]
fn a_long_request_is_split_and_joined() {
    let request = ToAgent::Exec(Box::new(ExecRequest::argv([
        vec![b'a'; 3 * 1024 * 1024],
        vec![],
    ])));
    let bytes = encode(std::slice::from_ref(&request));
    let mut reader = MessageReader::new(&bytes[..]);
    assert_eq!(reader.next_message().unwrap(), Some(request));
    assert_eq!(reader.next_message().unwrap(), None::<ToAgent>);
}

#[test]
fn a_request_over_the_limit_is_refused_before_it_is_sent() {
    let request = ToAgent::Exec(Box::new(ExecRequest::shell(vec![b'a'; MAX_MESSAGE])));
    let mut out = Vec::new();
    assert!(matches!(
        request.encode(&mut out),
        Err(EncodeError::TooLong { len }) if len > MAX_MESSAGE
    ));
    assert!(out.is_empty());
    let error = write_message(&mut Vec::new(), &request).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn long_data_takes_several_frames() {
    let data: Vec<u8> = (0..MAX_PAYLOAD * 2 + 1).map(|i| i as u8).collect();
    let bytes = encode(&[ToHost::Stdout(data.clone()), ToHost::Stderr(Vec::new())]);
    let mut decoder = Decoder::<ToHost>::new();
    decoder.push(&bytes);
    let mut messages = Vec::new();
    drain(&mut decoder, &mut messages);
    assert_eq!(messages.len(), 3);
    let got: Vec<u8> = messages
        .into_iter()
        .flat_map(|m| match m {
            ToHost::Stdout(part) => part,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(got, data);
}

fn refusal<M: Message>(bytes: &[u8]) -> DecodeError {
    let mut decoder = Decoder::<M>::new();
    decoder.push(bytes);
    loop {
        match decoder.next_message() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("accepted"),
            Err(error) => {
                // The first error is final, whatever comes after it.
                decoder.push(&encode(&to_agent()));
                assert_eq!(decoder.next_message().err(), Some(error.clone()));
                assert_eq!(decoder.pending(), 0);
                return error;
            }
        }
    }
}

#[test]
fn headers_are_judged_before_their_payload() {
    assert_eq!(
        refusal::<ToAgent>(b"GET / HTTP/1.1\r\n"),
        DecodeError::FrameTooLong(u32::from_le_bytes(*b"ET /"))
    );
    assert_eq!(
        refusal::<ToAgent>(&[0x3f, 0, 0, 0, 0]),
        DecodeError::UnknownKind(0x3f)
    );
    let over = (MAX_PAYLOAD as u32 + 1).to_le_bytes();
    assert_eq!(
        refusal::<ToAgent>(&[0x10, over[0], over[1], over[2], over[3]]),
        DecodeError::FrameTooLong(MAX_PAYLOAD as u32 + 1)
    );
    // A message of the other direction is unknown in this one.
    assert!(matches!(
        refusal::<ToAgent>(&encode(&[ToHost::ShuttingDown])),
        DecodeError::UnknownKind(_)
    ));
}

#[test]
fn continuations_keep_their_rules() {
    assert_eq!(
        refusal::<ToAgent>(&[0x90, 1, 0, 0, 0, 0]),
        DecodeError::BadContinuation(0x10)
    );
    assert_eq!(
        refusal::<ToAgent>(&[0x82, 0, 0, 0, 0]),
        DecodeError::BadContinuation(0x02)
    );
    assert_eq!(
        refusal::<ToAgent>(&[0x82, 1, 0, 0, 0, 0, 0x11, 0, 0, 0, 0]),
        DecodeError::Interrupted {
            expected: 2,
            got: 0x11
        }
    );
    let mut part = vec![0x82];
    part.extend_from_slice(&(MAX_PAYLOAD as u32).to_le_bytes());
    part.resize(HEADER_LEN + MAX_PAYLOAD, 0);
    let endless = part.repeat(MAX_MESSAGE / MAX_PAYLOAD + 1);
    assert_eq!(refusal::<ToAgent>(&endless), DecodeError::MessageTooLong);
}

#[test]
fn a_count_is_not_believed() {
    // An argv of 2^32 - 1 strings in nine bytes.
    let error = refusal::<ToAgent>(&[0x02, 5, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(error, DecodeError::BadValue { field: "argv", .. }));
    let mut few = vec![0x02, 5, 0, 0, 0, 0];
    few.extend_from_slice(&MAX_ITEMS.to_le_bytes());
    assert!(matches!(
        refusal::<ToAgent>(&few),
        DecodeError::Truncated { field: "argv", .. }
    ));
}

#[test]
fn a_hello_of_another_version_still_tells_its_version() {
    let mut bytes = vec![0x01, 14, 0, 0, 0];
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&99u16.to_le_bytes());
    bytes.extend_from_slice(b"more");
    let mut decoder = Decoder::<ToAgent>::new();
    decoder.push(&bytes);
    assert_eq!(
        decoder.next_message(),
        Ok(Some(ToAgent::Hello(HostHello { protocol: 99 })))
    );
    bytes[5] = b'C';
    assert_eq!(refusal::<ToAgent>(&bytes), DecodeError::BadMagic);
}

#[test]
fn signals_outside_the_kernels_range_are_refused() {
    for signal in [0, 65, 255] {
        assert!(ToAgent::decode(0x12, &[signal]).is_err(), "{signal}");
    }
}

#[test]
fn random_bytes_never_panic_and_what_they_say_is_canonical() {
    let mut random = Random(42);
    let mut decoded = 0;
    for _ in 0..20_000 {
        let kind = random.next() as u8 & 0x7f;
        let body = random.bytes(60);
        for messages in [
            ToAgent::decode(kind, &body).ok().map(|m| encode(&[m])),
            ToHost::decode(kind, &body).ok().map(|m| encode(&[m])),
        ] {
            let Some(bytes) = messages else { continue };
            decoded += 1;
            assert_eq!(bytes[0], kind);
            assert_eq!(&bytes[HEADER_LEN..], &body);
        }
    }
    assert!(decoded > 100, "only {decoded} bodies were valid");
}

#[test]
fn flipped_bits_never_panic() {
    let bytes = encode(&to_agent());
    let mut random = Random(3);
    for _ in 0..5_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(damaged.len());
            damaged[at] ^= 1 << random.below(8);
        }
        let mut decoder = Decoder::<ToAgent>::new();
        decoder.push(&damaged);
        while let Ok(Some(_)) = decoder.next_message() {}
    }
}

#[test]
fn a_stream_cut_in_a_message_is_told_from_one_that_ended() {
    let bytes = encode(&[ToHost::Started(1)]);
    let mut reader = MessageReader::<_, ToHost>::new(&bytes[..bytes.len() - 1]);
    assert!(matches!(reader.next_message(), Err(ReadError::Cut)));
    let mut reader = MessageReader::<_, ToHost>::new(&b""[..]);
    assert!(matches!(reader.next_message(), Ok(None)));
}

#[test]
fn shell_codes_follow_the_shells() {
    let status = |outcome, timed_out| ExitStatus {
        outcome,
        timed_out,
        oom_killed: false,
        elapsed_us: 0,
    };
    assert_eq!(status(Outcome::Code(3), false).shell_code(), 3);
    assert_eq!(status(Outcome::Signal(15), false).shell_code(), 143);
    assert_eq!(status(Outcome::Signal(15), true).shell_code(), 124);
    assert_eq!(status(Outcome::Code(0), true).shell_code(), 124);
    assert_eq!(ErrorKind::NotFound.shell_code(), 127);
    assert_eq!(ErrorKind::NotExecutable.shell_code(), 126);
    assert_eq!(ErrorKind::Busy.shell_code(), 125);
}

#[test]
fn a_seed_is_never_shown() {
    let resumed = Resumed::everything([1; 16], Seed([0xab; 32]));
    let shown = format!("{:?}", ToAgent::Resumed(Box::new(resumed)));
    assert!(
        !shown.contains("171") && shown.contains("Seed(…)"),
        "{shown}"
    );
}

#[test]
fn failures_of_a_renewal_are_told_by_name() {
    let step = |name: &str, state| Step {
        name: name.into(),
        state,
        detail: String::new(),
        elapsed_us: 0,
    };
    let renewed = Renewed {
        steps: vec![
            step("entropy", StepState::Done),
            step("clock", StepState::Failed),
            step("ssh-keys", StepState::Pending),
        ],
        elapsed_us: 0,
    };
    let failed: Vec<_> = renewed.failures().map(|step| step.name.as_str()).collect();
    assert_eq!(failed, ["clock"]);
}
