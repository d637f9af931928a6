//! What cannot be is refused in words that name the thing, by file and by API,
//! and leaves nothing behind.

use std::fs;
use std::path::PathBuf;

use coppice_tests::{End, Guest, Initrd, Kernel, kernel, refusal};
use serde_json::{Value, json};

/// The refusal of `guest` names each of `words`.
fn refused(guest: Guest, words: &[&str]) {
    let End { stderr, .. } = refusal(guest);
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
}

fn guest() -> Guest {
    Guest::running("reboot -f")
}

fn with_kernel(content: &[u8]) -> Guest {
    let guest = guest();
    let path = guest.path("kernel");
    fs::write(&path, content).expect("a file can be written");
    guest.kernel(Kernel::File(path))
}

#[test]
fn kernels_that_are_none() {
    let missing = Kernel::File(PathBuf::from("/nowhere/vmlinux"));
    refused(guest().kernel(missing), &["/nowhere/vmlinux"]);
    let directory = Kernel::File(PathBuf::from("/"));
    refused(guest().kernel(directory), &["\"/\""]);
    refused(with_kernel(b""), &["kernel"]);
    refused(with_kernel(b"#!/bin/sh\necho no kernel\n"), &["kernel"]);
    refused(with_kernel(&[0; 4096]), &["kernel"]);
}

#[test]
fn kernels_cut_short_or_built_for_others() {
    for name in ["vmlinux", "bzImage"] {
        let whole = fs::read(kernel(name)).expect("the kernel is built");
        for len in [1, 63, 511, 512, 0x200, 0x268, whole.len() / 2] {
            refused(with_kernel(&whole[..len]), &["kernel"]);
        }
    }
    let mut elf = fs::read(kernel("vmlinux")).expect("the kernel is built");
    // e_machine: AArch64.
    elf[18..20].copy_from_slice(&183_u16.to_le_bytes());
    refused(with_kernel(&elf), &["kernel"]);
    let mut image = fs::read(kernel("bzImage")).expect("the kernel is built");
    // setup_sects: more than there are.
    image[0x1f1] = 0xff;
    image.truncate(0x8000);
    refused(with_kernel(&image), &["kernel"]);
}

#[test]
fn an_initrd_larger_than_memory() {
    let mut initrd = Initrd::with_script("reboot -f");
    initrd.padding(70 << 20);
    refused(Guest::with_initrd(initrd).memory_mib(64), &["initrd"]);
    let missing = guest().change(|c| c["boot-source"]["initrd_path"] = json!("/nowhere/initrd"));
    refused(missing, &["/nowhere/initrd"]);
}

#[test]
fn a_command_line_that_is_too_long() {
    refused(guest().boot_args(&"x".repeat(2048)), &["2047"]);
    // It would fit without what the devices need.
    refused(guest().boot_args(&"x".repeat(1980)), &["command line"]);
    let nul = guest().change(|c| c["boot-source"]["boot_args"] = json!("a\0b"));
    refused(nul, &["boot_args"]);
}

#[test]
fn impossible_numbers_of_vcpus_and_memory() {
    refused(guest().vcpus(0), &["vcpu_count", "0", "32"]);
    refused(guest().vcpus(33), &["vcpu_count", "33", "32"]);
    refused(guest().memory_mib(0), &["mem_size_mib", "0"]);
    refused(guest().memory_mib(1), &["1"]);
    refused(guest().memory_mib(1 << 40), &["mem_size_mib"]);
    let fraction = guest().change(|c| c["machine-config"]["mem_size_mib"] = json!(128.5));
    refused(fraction, &["mem_size_mib"]);
    let negative = guest().change(|c| c["machine-config"]["mem_size_mib"] = json!(-1));
    refused(negative, &["mem_size_mib"]);
}

#[test]
fn images_that_cannot_be_used() {
    let nowhere = PathBuf::from("/nowhere/image");
    refused(guest().drive(&nowhere, false), &["/nowhere/image"]);
    let root = PathBuf::from("/");
    refused(guest().drive(&root, true), &["directory"]);
    let odd = guest().new_drive("odd", 5 * 512 + 100);
    refused(odd, &["odd", "2660", "512"]);
    // A file system that is mounted read-only cannot be written to.
    let read_only = PathBuf::from("/proc/version");
    refused(guest().drive(&read_only, false), &["/proc/version"]);
}

#[test]
fn sockets_that_cannot_be_made() {
    let long = "/tmp/".to_owned() + &"s".repeat(120);
    let too_long = guest().change(|c| c["vsock"]["uds_path"] = json!(long));
    refused(too_long, &["uds_path", "107"]);
    let nowhere = guest().change(|c| c["vsock"]["uds_path"] = json!("/nowhere/vsock"));
    refused(nowhere, &["/nowhere/vsock"]);

    let in_use = guest();
    let path = in_use.path("taken");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let in_use = in_use.change(|c| c["vsock"]["uds_path"] = json!(path.clone()));
    let stays = path.clone();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        refused(in_use, &["in use"]);
    }));
    // The harness complains that a socket is left: ours, which has to be.
    let complaint = result.expect_err("the other's socket stays");
    let complaint = complaint.downcast_ref::<String>().expect("a message");
    assert!(complaint.contains("sockets were left"), "{complaint}");
    assert!(complaint.contains(stays.to_str().expect("UTF-8")));
    drop(listener);
}

#[test]
fn configuration_files_that_make_no_sense() {
    let unknown = guest().change(|c| c["machine-config"]["colour"] = json!("green"));
    refused(unknown, &["colour"]);
    let section = guest().change(|c| c["weather"] = json!({}));
    refused(section, &["weather"]);
    let no_kernel = guest().change(|c| {
        c.as_object_mut().expect("an object").remove("boot-source");
    });
    // Without a boot source the harness adds one that names no kernel.
    refused(no_kernel, &["kernel_image_path"]);
    let twice = guest().new_drive("a", 512).change(|c| {
        let first = c["drives"][0].clone();
        c["drives"].as_array_mut().expect("a list").push(first);
    });
    // The later of two drives with one id replaces the earlier, as over the API,
    // or it is refused: either way no crash.
    let End { stderr, .. } = end_of(twice);
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn end_of(guest: Guest) -> End {
    guest.boot().end()
}

#[test]
fn the_api_refuses_the_same_and_then_takes_what_is_right() {
    let guest = guest();
    let good = guest.config();
    let mut machine = guest.idle();
    let wrong: &[(&str, Value, &str)] = &[
        (
            "/machine-config",
            json!({ "vcpu_count": 0, "mem_size_mib": 128 }),
            "vcpu_count",
        ),
        (
            "/machine-config",
            json!({ "vcpu_count": 33, "mem_size_mib": 128 }),
            "vcpu_count",
        ),
        (
            "/machine-config",
            json!({ "vcpu_count": 1, "mem_size_mib": 0 }),
            "mem_size_mib",
        ),
        (
            "/machine-config",
            json!({ "vcpu_count": 1 }),
            "mem_size_mib",
        ),
        ("/machine-config", json!([]), "object"),
        (
            "/vsock",
            json!({ "guest_cid": 2, "uds_path": "/tmp/x" }),
            "guest_cid",
        ),
        (
            "/drives/a",
            json!({ "drive_id": "b", "path_on_host": "/x", "is_root_device": false }),
            "drive_id",
        ),
        (
            "/actions",
            json!({ "action_type": "InstanceStart" }),
            "kernel",
        ),
    ];
    for (path, body, word) in wrong {
        let fault = machine.request("PUT", path, Some(body)).fault();
        assert!(fault.contains(word), "{path} {body}: {fault}");
    }
    assert_eq!(machine.request("GET", "/nowhere", None).status, 400);
    machine.configure(&good);
    machine.put("/actions", &json!({ "action_type": "InstanceStart" }));
    assert_eq!(machine.end().code, Some(0));
}
