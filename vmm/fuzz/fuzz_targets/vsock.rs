//! A guest that sends what packets it likes, and programs on the host that
//! come, write, read and go at any time.

#![no_main]

mod input;

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use coppice_vmm::devices::vsock::Vsock;
use coppice_vmm::spec::VsockConfig;
use coppice_vmm::virtio::VirtioDevice as _;
use coppice_vmm::virtio::mock_driver::{MockDriver, env, guest_memory};
use input::Input;
use libfuzzer_sys::fuzz_target;

const CID: u32 = 3;

/// A packet whose fields are mostly plausible, so that it often concerns a
/// connection that exists.
fn packet(input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte();
    let src_cid: u64 = if choice == 0 { 9 } else { CID.into() };
    let dst_cid: u64 = if choice == 1 { 9 } else { 2 };
    let kind: u16 = if choice == 2 { 2 } else { 1 };
    let guest = u32::from(input.byte() % 4);
    // Ports of the listener, of nobody, and those that the device hands out.
    let host = match input.byte() % 8 {
        0..=3 => 52,
        4 => 53,
        n => (1 << 30) + u32::from(n) - 5,
    };
    let len = usize::from(input.u16() % 4096);
    let said = if choice == 3 { input.u32() } else { len as u32 };
    let op = u16::from(input.byte() % 9);
    let flags = u32::from(input.byte() % 4);
    let buffer = u32::from(input.u16());
    let taken = if choice == 4 {
        input.u32()
    } else {
        input.byte().into()
    };
    let mut bytes = Vec::new();
    bytes.extend(src_cid.to_le_bytes());
    bytes.extend(dst_cid.to_le_bytes());
    bytes.extend(guest.to_le_bytes());
    bytes.extend(host.to_le_bytes());
    bytes.extend(said.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(op.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(buffer.to_le_bytes());
    bytes.extend(taken.to_le_bytes());
    bytes.extend(std::iter::repeat_n(7, len));
    if choice == 5 {
        bytes.truncate(input.byte().into());
    }
    bytes
}

/// Starts the device for a driver with rings of its own.
fn start(device: &mut Vsock) -> (MockDriver, MockDriver) {
    let memory = guest_memory();
    let receive = MockDriver::new(&memory, 0, 32);
    let transmit = MockDriver::new(&memory, 1, 32);
    let event = MockDriver::new(&memory, 2, 8);
    device
        .start(env(&memory, &[&receive, &transmit, &event], 1))
        .expect("the device starts");
    (receive, transmit)
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v");
    let listener = UnixListener::bind(dir.path().join("v_52")).expect("a socket");
    listener.set_nonblocking(true).expect("a socket");
    let config = VsockConfig {
        guest_cid: CID,
        uds_path: path.clone(),
        vsock_id: None,
    };
    let mut device = Vsock::new(&config).expect("a device");
    let (mut receive, mut transmit) = start(&mut device);
    let mut posted = 0;
    let mut streams: Vec<UnixStream> = Vec::new();
    let mut sound = true;

    while !input.is_empty() && sound {
        let pick = usize::from(input.byte());
        match input.byte() % 12 {
            0..=3 => {
                transmit.forget_data();
                let packet = packet(&mut input);
                let (front, back) = packet.split_at(packet.len().min(pick));
                transmit.send(&[front, back], &[]);
                sound = device.queue_notified(1).is_ok();
                transmit.used();
            }
            4 | 5 if posted < 16 => {
                receive.forget_data();
                receive.send(&[], &[pick % 60, usize::from(input.u16() % 5000)]);
                posted += 1;
                sound = device.queue_notified(0).is_ok();
            }
            6 if streams.len() < 16 => {
                let mut client = UnixStream::connect(&path).expect("the device listens");
                let line = format!("CONNECT {}\n", pick % 4);
                let _ = client.write_all(&line.as_bytes()[..line.len() - pick / 128]);
                let _ = client.set_nonblocking(true);
                streams.push(client);
            }
            7 => {
                if let Ok((stream, _)) = listener.accept() {
                    let _ = stream.set_nonblocking(true);
                    streams.push(stream);
                }
            }
            8 if !streams.is_empty() => drop(streams.swap_remove(pick % streams.len())),
            9 if !streams.is_empty() => {
                let at = pick % streams.len();
                let _ = streams[at].write(&[1; 5000][..usize::from(input.u16() % 5000)]);
            }
            10 if !streams.is_empty() => {
                let at = pick % streams.len();
                let _ = streams[at].read(&mut [0; 100_000]);
            }
            11 if pick < 16 => {
                device.stop();
                (receive, transmit) = start(&mut device);
                posted = 0;
            }
            _ => {}
        }
        sound = sound && device.backend_ready().is_ok();
        posted -= receive.used().len();
    }
    device.stop();
});
